package agent

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
)

// sim is one run of the plane in a world of its own: real owners, cores, plans and messages on simulated machines,
// networks, clocks and memories. A seed decides everything; there is no goroutine and no wall clock.
type sim struct {
	opts    simOptions
	mutant  *mutant
	ctx     context.Context
	rng     *rand.Rand            // draws the world
	dice    [simFaults]*rand.Rand // one stream per kind of fault, so that one left out does not move the others
	weight  [simFaults]int        // chance in a thousand
	counts  *simCounts
	now     time.Duration
	queue   simQueue
	pushed  uint64
	events  int
	hash    uint64
	calm    bool // no more faults: everything must come to its end
	tracing bool
	history []string

	model      simModel
	times      kvplane.Times
	fences     bool // the transport can fence
	polled     bool // the transport must be polled
	serial     bool // a new generation starts only when the old one is gone
	tickets    bool // the gateway gives tickets
	afterPolls bool // what lands only at the target's poll is the theme
	oneHost    bool // every process can be judged by every other
	wide       *rand.Rand
	caps       core.Bounds   // of producers' tables; zero: as they are
	prepares   bool          // the transport can be told of places
	hasty      bool          // what is queued lapses soon: see hurry
	odd        int           // which engine has a layout that fits no other; -1: none
	ages       time.Duration // when the last message comes that was kept for minutes
	troubles   map[[2]*simNode]time.Duration
	engines    []*simEngine
	nodes      []*simNode
	agents     map[string]*simNode
	cuts       map[[2]*simEngine]int // partitions, by direction
	directory  simDirectory
	requests   []*simRequest
	attempts   []*simAttempt // attempt i is number i+1: 0 owns nothing
	byID       map[kvplane.TransferID]*simAttempt
	writes     map[*simWrite]bool // of which bytes may still land
	posts      map[simPost]*simWrite
	open       int // requests without an answer
}

// simFailure is a broken invariant.
type simFailure struct {
	rule string // S1 … L4, or panic
	text string
}

func (f *simFailure) String() string { return f.rule + ": " + f.text }

type simStep struct {
	at   time.Duration
	n    uint64
	do   func()
	node *simNode      // whose owner is to run, unless it has changed its mind
	late *simScheduler // whose deadline is over, unless it has changed its mind
}

type simQueue []simStep

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simStep)) }
func (q *simQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1] = simStep{}
	*q = old[:len(old)-1]
	return x
}

// at and after plan an event.
func (s *sim) at(at time.Duration, do func()) { s.push(simStep{at: max(at, s.now+1), do: do}) }

func (s *sim) push(step simStep) {
	s.pushed++
	step.n = s.pushed
	heap.Push(&s.queue, step)
}

func (s *sim) after(d time.Duration, do func()) { s.at(s.now+d, do) }

// some draws a duration from 1 ns to limit.
func (s *sim) some(limit time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(limit)) + 1)
}

// strike draws whether a fault happens here and counts it if so.
func (s *sim) strike(f simFault) bool {
	if s.calm || s.weight[f] == 0 || s.dice[f].IntN(1000) >= s.weight[f] {
		return false
	}
	s.counts.faults[f]++
	return true
}

// extent draws how long or how big a fault is, from its own stream.
func (s *sim) extent(f simFault, limit time.Duration) time.Duration {
	return time.Duration(s.dice[f].Int64N(int64(limit)) + 1)
}

// mix takes numbers into the trace's hash: two runs of a seed must be equal.
func (s *sim) mix(values ...uint64) {
	for _, v := range values {
		s.hash = (s.hash ^ v) * 0x100000001b3
		s.hash ^= s.hash >> 29
	}
}

func (s *sim) note(format string, args ...any) {
	if s.tracing {
		s.history = append(s.history, fmt.Sprintf("%12v ", s.now)+fmt.Sprintf(format, args...))
	}
}

// fail ends the run. It unwinds whatever is running.
func (s *sim) fail(rule, format string, args ...any) {
	panic(&simFailure{rule: rule, text: fmt.Sprintf(format, args...)})
}

// simResult is what became of a run.
type simResult struct {
	failure *simFailure
	hash    uint64
	events  int
	history []string
}

// runSim plays a seed to its end. counts may be nil.
func runSim(o simOptions, m *mutant, counts *simCounts, tracing bool) (result simResult) {
	if counts == nil {
		counts = newSimCounts()
	}
	s := &sim{
		opts: o, mutant: m, counts: counts, tracing: tracing, ctx: context.Background(), now: time.Millisecond, hash: 14695981039346656037,
		rng: rand.New(rand.NewPCG(o.seed, 0x5eed)), agents: map[string]*simNode{}, cuts: map[[2]*simEngine]int{},
		byID: map[kvplane.TransferID]*simAttempt{}, writes: map[*simWrite]bool{}, posts: map[simPost]*simWrite{}, odd: -1, troubles: map[[2]*simNode]time.Duration{},
	}
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*simFailure)
			if !ok {
				f = &simFailure{rule: "panic", text: fmt.Sprint(r)}
				if tracing {
					f.text += "\n" + simStack()
				}
			}
			result.failure = f
		}
		result.hash, result.events, result.history = s.hash, s.events, s.history
		counts.events += s.events
	}()
	s.draw()
	s.play()
	return result
}

const simMaxEvents = 400_000 // of one run

// settle bounds how long it takes from the end of the faults until nothing is left.
func (s *sim) settle() time.Duration {
	return 5*s.times.Wait + 4*s.times.Lease + 20*s.times.Deadline + time.Minute + max(0, s.ages-s.opts.until)
}

// play runs until nothing is left to happen, in two halves: with faults, and after them.
func (s *sim) play() {
	s.at(s.opts.until, s.heal)
	for len(s.queue) > 0 {
		step := heap.Pop(&s.queue).(simStep)
		if n := step.node; n != nil && (n.dead || n.wake != step.at) {
			continue
		}
		if c := step.late; c != nil && (c.run.dead || c.wake != step.at) {
			continue
		}
		s.now = step.at
		s.events++
		s.mix(uint64(s.now))
		step.do()
		switch {
		case s.events > simMaxEvents:
			s.fail("L3", "more than %d events", simMaxEvents)
		case s.now > s.opts.until+s.settle():
			s.unsettled()
			return
		}
	}
	s.settled()
}
