// Package scaling says how full the engines of a role are, how many of them are wanted, and how many times as long as the objective requests take.
// All of it is values that take the time, in seconds since any moment that is the same for all: nothing here reads a clock, asks an engine or scales
// anything. Package router/fleet fills in what is known of engines; an autoscaler reads the metrics.
package scaling

import "math"

// State is whether an engine is of use now.
type State uint8

const (
	// Ready engines take their full part of the requests.
	Ready State = iota
	// Starting engines are new or back. They are capacity that comes: none more is asked for in their place, but none is given up for them.
	Starting
	// Out engines are down or ejected. They are replicas, and no capacity.
	Out
)

// Engine is what one engine, or one data-parallel rank of it, has to do.
type Engine struct {
	Replica      string // ranks of one engine have the same, and follow each other
	State        State
	Wait         float64 // seconds of prompts that it has yet to compute
	Prompts      float64 // seconds of prompts for each second that it was given lately
	Streams      int
	ITL, IdleITL float64 // seconds between the tokens of its streams, and of one stream alone
	KV           float64 // the part of its KV cache that streams hold; 0 if that is not known
}

// Objective is what requests are to keep, in seconds.
type Objective struct{ TTFT, ITL float64 }

// Queue are the requests that wait for a place with the engines.
type Queue struct {
	Waiting int
	Prompt  float64 // seconds that an engine takes for one prompt, in the mean
}

// Load is what the engines of a role have to do.
type Load struct {
	Ready, Starting, Out int     // replicas
	Backlog              float64 // seconds of prompts yet to be computed, for one engine; with those in the queue
	// Work is how many engines would be exactly as full as they may be: those whose prompts, or tokens, just keep the objective.
	Work float64
}

// Saturation is how full the ready engines are: 1 if they just keep the objective. known is false if there are none.
func (l Load) Saturation() (ratio float64, known bool) {
	n := l.Ready
	if n == 0 {
		n = l.Starting
	}
	return l.Work / float64(max(1, n)), n > 0
}

const (
	// fullKV is the part of a KV cache that streams may hold: beyond it engines begin to preempt.
	fullKV = .9
	// leastRoom bounds the room between the tokens of one stream and the objective, as a part of that: an engine may not keep it at all.
	leastRoom = .1
)

// Loads returns the loads of the engines that compute prompts and of those that give answers. Without prefill engines decode engines do both, and
// their load is the second. What waits in the queue counts where prompts are computed, and as streams where answers are given if these engines are
// the fuller ones: then it waits for them.
func Loads(prefill, decode []Engine, q Queue, o Objective) (p, d Load) {
	queued := float64(q.Waiting) * q.Prompt
	if len(prefill) == 0 {
		return Load{}, loadOf(decode, queued, float64(q.Waiting), o)
	}
	p, d = loadOf(prefill, queued, 0, o), loadOf(decode, 0, 0, o)
	full, _ := loadOf(prefill, 0, 0, o).Saturation()
	if of, _ := d.Saturation(); q.Waiting > 0 && of > full {
		d = loadOf(decode, 0, float64(q.Waiting), o)
	}
	return p, d
}

func loadOf(engines []Engine, queued, waiting float64, o Objective) (l Load) {
	last, backlog := "", queued
	var prompts, tokens, kv, streams float64
	for i, e := range engines {
		if i == 0 || e.Replica != last {
			*[...]*int{&l.Ready, &l.Starting, &l.Out}[e.State]++
			last = e.Replica
		}
		backlog += e.Wait
		prompts += e.Prompts
		streams += float64(e.Streams)
		if e.Streams > 0 {
			tokens += max(0, e.ITL-e.IdleITL) / max(o.ITL-e.IdleITL, leastRoom*o.ITL)
			kv += e.KV / fullKV
		}
	}
	ranks := float64(len(engines)) / float64(max(1, l.Ready+l.Starting+l.Out))
	able := float64(max(1, l.Ready+l.Starting))
	if streams > 0 {
		more := 1 + waiting/streams
		tokens, kv = tokens*more, kv*more
	}
	l.Backlog = backlog / (able * ranks)
	l.Work = max(prompts, backlog/o.TTFT, tokens, kv) / ranks
	return l
}

const (
	// aimedAt is the saturation that replicas are asked for; more are asked for above upAbove, one less below downBelow if the others then stay
	// below withoutOne: random loads must not ask for it again.
	aimedAt    = .5
	upAbove    = .55
	downBelow  = .4
	withoutOne = .45
	// mostTimes is how many times as many replicas as there are may be asked for.
	mostTimes = 2
	// smoothed is the time constant of the mean that decides, in seconds.
	smoothed = 45
)

// Replicas says how many replicas of a role are wanted. The zero value has seen nothing.
type Replicas struct {
	work, at float64
	begun    bool
}

// Step takes in a load and returns how many replicas are wanted, those that are out included. It is never below 1, and at most one less than there are.
func (r *Replicas) Step(now float64, l Load) int {
	able := l.Ready + l.Starting
	if able == 0 {
		r.begun = false
		return max(1, l.Out)
	}
	work := r.work
	if !math.IsNaN(l.Work) { // it would stay in the mean
		work = min(l.Work, mostTimes*aimedAt*float64(able))
	}
	if !r.begun {
		r.begun, r.work = true, work
	} else if dt := now - r.at; dt > 0 {
		r.work += (work - r.work) * -math.Expm1(-dt/smoothed)
	}
	r.at = max(r.at, now)
	wanted := able
	switch fewer := float64(l.Ready - 1); {
	case r.work > upAbove*float64(able):
		wanted = max(able, int(math.Ceil(r.work/aimedAt)))
	case l.Starting == 0 && l.Ready > 1 && r.work < downBelow*float64(l.Ready) && r.work < withoutOne*fewer:
		wanted--
	}
	return min(wanted, mostTimes*able) + l.Out
}
