package load

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// The built-in workload has the shape of the first 4,000 requests of the public trace of Mooncake's conversations (FAST '25,
// conversation_trace.jsonl), without its data. It reproduces these figures of theirs (TestMadeTrace has the numbers): the rate of
// requests, and how much more than Poisson's it varies over half a minute and a minute; mean, median, p90 and p99 of prompts and
// answers; how often a request goes on with an earlier one, and so how much of all prompts a cache without bounds has had, less of
// it while that cache is cold; and the one block that all prompts begin with. Requests of the public trace come in steps of 3 s;
// these have times of their own.
//
// All requests are turns of sessions. A fifth of the first turns are short questions that nobody goes on with. Any other turn
// is followed, after somebody has read and typed, by one whose prompt is the last one, its answer and what was typed, or, in
// every fifth case, by one that keeps only the beginning of the prompt.

// distribution is values at workloadQuantiles.
type distribution [16]float64

var workloadQuantiles = distribution{0, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .995, 1}

// What the trace's requests are drawn from.
var (
	firstPrompt   = distribution{892, 897, 903, 1037, 1648, 4015, 5500, 7600, 10500, 15400, 23800, 35500, 62000, 93500, 116000, 122800}
	answerLength  = distribution{1, 9, 24, 97, 216, 300, 358, 404, 453, 510, 605, 698, 906, 1157, 1645, 2000}
	typedLength   = distribution{-872, -18, -3, 8, 11, 17, 26, 47, 175, 965, 4560, 8074, 15044, 20003, 22474, 91467}
	pauseSeconds  = distribution{3, 33, 45, 63, 81, 102, 135, 180, 246, 342, 471, 591, 675, 734, 875, 1026}
	branchKeeps   = distribution{.01, .05, .06, .09, .12, .16, .23, .31, .42, .6, .87, .91, .94, .96, .96, .99}
	branchBrings  = distribution{10, 905, 1730, 5141, 7846, 9423, 10326, 12299, 15322, 18096, 25390, 29750, 38771, 44132, 65404, 94968}
	goesOn        = [...]float64{.44, .46, .5} // after the first turn, the second …; the last is for all that follow
	shortQuestion = 1000                       // tokens: nobody goes on with less
)

const (
	requestsASecond = 3.07
	sessionsASecond = 1.83             // about what gives as many
	branches        = .19              // of the turns that follow another
	swing           = .16              // by which the rate of new sessions differs from minute to minute, one standard deviation
	history         = 30 * time.Minute // of sessions before the first request, so that it meets some that go on
	longestPrompt   = 123192
)

// draw draws a value, between two quantiles on a straight line.
func (d *distribution) draw(r *rand.Rand) float64 {
	p := r.Float64()
	i := 1
	for workloadQuantiles[i] < p {
		i++
	}
	part := (p - workloadQuantiles[i-1]) / (workloadQuantiles[i] - workloadQuantiles[i-1])
	return d[i-1] + part*(d[i]-d[i-1])
}

// tokens draws a number of tokens, at least 1.
func (d *distribution) tokens(r *rand.Rand) int { return max(1, int(d.draw(r))) }

// MadeTrace makes n requests, at least one, the same for the same seed.
func MadeTrace(n int, seed uint64) []Request {
	w := workload{r: rand.New(rand.NewPCG(seed, 0x6d6f6f6e))}
	enough := history + time.Minute + time.Duration(float64(n)/sessionsASecond*float64(time.Second)) // of sessions alone
	rate := 0.0
	for at, minute := time.Duration(0), time.Duration(-1); at < enough; at += time.Duration(w.r.ExpFloat64() / rate * float64(time.Second)) {
		if at/time.Minute != minute {
			minute = at / time.Minute
			rate = sessionsASecond * max(.5, 1+swing*w.r.NormFloat64())
		}
		w.session(at)
	}
	slices.SortStableFunc(w.turns, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	begin, _ := slices.BinarySearchFunc(w.turns, history, func(t Request, at time.Duration) int { return cmp.Compare(t.At, at) })
	trace := slices.Clone(w.turns[begin:][:n])
	first, last := trace[0].At, trace[n-1].At
	exact := float64(n-1) / requestsASecond / max(last-first, 1).Seconds() // so that seeds differ in everything but the rate
	for i := range trace {
		trace[i].At = time.Duration(float64(trace[i].At-first) * exact)
	}
	return trace
}

// workload is requests in the making.
type workload struct {
	r     *rand.Rand
	last  int // id that was given to a block; 0 is the one that all begin with
	turns []Request
}

// session adds all turns of a session that begins at a time.
func (w *workload) session(at time.Duration) {
	t := Request{At: at, Input: firstPrompt.tokens(w.r), Output: answerLength.tokens(w.r), Blocks: []int{0}}
	for turn := 0; ; turn++ {
		w.fill(&t)
		w.turns = append(w.turns, t)
		if t.Input < shortQuestion || w.r.Float64() >= goesOn[min(turn, len(goesOn)-1)] {
			return
		}
		t = w.next(t)
		if t.Input > longestPrompt {
			return
		}
	}
}

// next is the turn after one, with the blocks that both have.
func (w *workload) next(was Request) Request {
	t := Request{At: was.At + time.Duration(pauseSeconds.draw(w.r)*float64(time.Second)), Output: answerLength.tokens(w.r)}
	kept := was.Input / TraceBlock // full blocks
	if w.r.Float64() < branches {
		kept = int(branchKeeps.draw(w.r) * float64(kept))
		t.Input = max(1, kept)*TraceBlock + branchBrings.tokens(w.r)
	} else {
		t.Input = was.Input + was.Output + int(typedLength.draw(w.r))
	}
	kept = max(1, kept)
	t.Input = max(t.Input, kept*TraceBlock+1)
	t.Blocks = slices.Clone(was.Blocks[:kept])
	return t
}

// fill gives the blocks that are new their ids.
func (w *workload) fill(t *Request) {
	for len(t.Blocks) < (t.Input-1)/TraceBlock+1 {
		w.last++
		t.Blocks = append(t.Blocks, w.last)
	}
}
