package agent

import (
	"fmt"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// simEngine is an engine under its stable name; runs come and go.
type simEngine struct {
	s     *sim
	name  string
	role  metadata.Role
	shape simShape
	runs  []*simRun
}

// simRun is one generation of an engine: its processes, its scheduler and its blocks.
type simRun struct {
	s       *sim
	engine  *simEngine
	inc     metadata.Incarnation
	nodes   []*simNode
	records []metadata.Record
	ranks   []metadata.Rank
	pool    *simPool
	sched   *simScheduler
	legs    map[kvplane.TransferID]*simLeg // alive
	seen    map[kvplane.TransferID]bool    // P: served or refused before
	waiting []*simLeg                      // for blocks, in their order
	dead    bool
	over    bool // a newer generation has started
}

func (e *simEngine) current() *simRun { return e.runs[len(e.runs)-1] }

// start begins a new generation.
func (e *simEngine) start() *simRun {
	s := e.s
	r := &simRun{s: s, engine: e, legs: map[kvplane.TransferID]*simLeg{}, seen: map[kvplane.TransferID]bool{}}
	r.inc = metadata.Incarnation{Engine: e.name, Generation: uint64(len(e.runs) + 1)}
	for _, old := range e.runs {
		old.over = true
	}
	e.runs = append(e.runs, r)
	r.pool = newSimPool(s.model.groupCount(), e.shape.blocks)
	for pp := range e.shape.pp {
		for tp := range e.shape.tp {
			rank := metadata.Rank{PP: pp, TP: tp}
			n := s.newSimNode(r, rank)
			r.nodes = append(r.nodes, n)
			r.ranks = append(r.ranks, rank)
			r.records = append(r.records, n.record)
		}
	}
	r.sched = newSimScheduler(r)
	s.note("%s starts with %d stages of %d", r.inc.ID(), e.shape.pp, e.shape.tp)
	s.directory.publish(s, r)
	return r
}

// simLeg is one engine's part in an attempt.
type simLeg struct {
	run     *simRun
	attempt *simAttempt
	again   bool // a leg that the router did not mean to be there: nobody hears of its end
	state   simLegState
	tokens  int // P: computed
	blocks  []kvplane.BlockList
	ranks   map[metadata.Rank]*simLegRank
	told    time.Duration // when it was told to stop; 0: never
	failed  bool
	queued  bool // D: its ranks are told that it will be expected
	reason  kvplane.Reason
}

type simLegState uint8

const (
	legQueued  simLegState = iota + 1 // no blocks
	legWorking                        // P: prefill runs
	legPlaned                         // offered or expected
	legDecode                         // D: decode runs
	legOver
)

// simLegRank is what one rank has been given and has said.
type simLegRank struct {
	given   time.Duration // when it was offered or expected, on its clock; 0: not yet
	at      time.Duration // and in the world's time
	stopped time.Duration // when it was abandoned, in the world's time; 0: not
	said    []kvplane.ReportKind
}

func (r *simRun) leg(a *simAttempt, again bool) *simLeg {
	l := &simLeg{run: r, attempt: a, again: again, state: legQueued, ranks: map[metadata.Rank]*simLegRank{}}
	for _, rank := range r.ranks {
		l.ranks[rank] = &simLegRank{}
	}
	r.legs[a.id] = l
	return l
}

// queue has prefill keep the transfer until there is room, and says so again and again.
func (l *simLeg) queue() {
	if l.state != legQueued || l.run.dead {
		return
	}
	l.queued = true
	l.run.sched.order(sched.Orders{Queue: []sched.Queued{{ID: l.attempt.id, Peer: l.attempt.p.inc}}})
	l.run.s.after(l.run.s.times.Beat, l.queue)
}

// dequeued is the ranks' word that prefill does not keep what is queued.
func (l *simLeg) dequeued(why kvplane.Reason) {
	l.run.s.counts.reach("lost while queued: " + why.String())
	l.reason = why
	l.abandon("it is not kept")
	l.release()
	l.attempt.failed(l)
}

// reserve waits for blocks and goes on with them.
func (l *simLeg) reserve() {
	if l.state != legQueued || l.run.dead {
		return
	}
	at, wanted := l.need()
	if l.blocks = l.run.pool.take(l.attempt.number, l.run.engine.shape.blocks, wanted, at); l.blocks == nil {
		l.run.waiting = append(l.run.waiting, l)
		return
	}
	if l.run.engine.role == metadata.Prefill {
		l.prefill()
	} else {
		l.expect()
	}
}

// release gives the leg's blocks back, at once to whoever waits.
func (l *simLeg) release() {
	if l.state == legOver {
		return
	}
	r := l.run
	l.state = legOver
	delete(r.legs, l.attempt.id)
	if l.blocks != nil {
		r.pool.give(r.engine.shape.blocks, l.blocks)
		r.s.note("%s frees %v of attempt %d", r.inc.ID(), l.blocks, l.attempt.number)
		l.blocks = nil
	}
	waiting := r.waiting
	r.waiting = nil
	for _, w := range waiting {
		w.reserve()
	}
}

// need says where each group's list begins and how many blocks it has.
func (l *simLeg) need() (at, wanted []int) {
	q, h, m := l.attempt.request, &l.run.engine.shape, &l.run.s.model
	for g := range m.groupCount() {
		first := 0
		if l.run.engine.role == metadata.Decode {
			first = min(l.attempt.hit, q.tokens)
		}
		if w := m.window(g); w > 0 {
			first = max(first, q.tokens-w-q.slack)
		}
		first = first / (4 * m.kernel) * (4 * m.kernel) // a block of either side begins there
		if l.run.engine.role == metadata.Decode && l.attempt.hit >= q.tokens {
			at, wanted = append(at, (q.tokens+h.logical-1)/h.logical*h.logical), append(wanted, q.spare)
			continue
		}
		n := (q.tokens - first + h.logical - 1) / h.logical
		at, wanted = append(at, first), append(wanted, n+q.spare)
	}
	return at, wanted
}

// prefill computes, then offers on every rank.
func (l *simLeg) prefill() {
	s, r := l.run.s, l.run
	l.state = legWorking
	d := s.some(40 * time.Millisecond)
	if s.strike(faultLong) {
		d = s.extent(faultLong, s.times.Wait)
		if s.dice[faultLong].IntN(2) == 0 {
			d += 2 * s.times.Wait
		}
	}
	if s.strike(faultAbort) {
		s.after(s.extent(faultAbort, 2*d+20*time.Millisecond), func() { l.stop("the engine aborts") })
	}
	s.after(d, func() {
		if r.dead || l.state != legWorking {
			return
		}
		l.compute()
		o := kvplane.Offer{ID: l.attempt.id, Peer: l.attempt.d.inc, Tokens: l.tokens, Groups: l.blocks, Ticket: l.attempt.ticket()}
		o.Hash[0] = byte(l.attempt.request.tokens)
		r.sched.order(sched.Orders{Offer: []kvplane.Offer{o}})
		l.attempt.prefilled(l)
	})
}

// compute fills the leg's blocks on every rank.
func (l *simLeg) compute() {
	r, q := l.run, l.attempt.request
	l.state, l.tokens = legPlaned, q.tokens
	if r.s.strike(faultFewer) {
		l.tokens = max(1, q.tokens-1-r.s.dice[faultFewer].IntN(3))
	}
	for _, n := range r.nodes {
		for g, list := range l.blocks {
			n.memory.each(g, list, list.First, l.tokens, func(at int, tag uint64) {
				n.memory.tags[at] = tag + simTag(l.attempt.number, 0, 0, 0, 0)
			})
		}
	}
}

// expect registers on every rank.
func (l *simLeg) expect() {
	l.state = legPlaned
	q := l.attempt.request
	e := kvplane.Expectation{ID: l.attempt.id, Peer: l.attempt.p.inc, Need: [2]int{min(l.attempt.hit, q.tokens), q.tokens}, Groups: l.blocks, Ticket: l.attempt.ticket()}
	e.Hash[0] = byte(q.tokens)
	l.run.sched.order(sched.Orders{Expect: []kvplane.Expectation{e}})
}

// stop is the router's word, or the engine's own: nobody wants this any more.
func (l *simLeg) stop(why string) {
	s := l.run.s
	if l.run.dead || l.state == legOver || l.told > 0 {
		return
	}
	s.note("%s stops attempt %d: %s", l.run.inc.ID(), l.attempt.number, why)
	l.told = s.now
	prefill := l.run.engine.role == metadata.Prefill
	switch {
	case l.state == legQueued:
		if l.queued {
			l.abandon(why)
		}
		l.release()
	case l.state == legDecode:
		l.release()
	case l.state == legWorking: // before anything was offered: the blocks are free at once
		l.abandon(why)
		l.release()
		l.attempt.stopped(l)
	case prefill:
		l.abandon(why)
		l.attempt.stopped(l)
	case !l.failed:
		l.lost(kvplane.Stopped)
	}
}

// abandon tells every rank.
func (l *simLeg) abandon(why string) {
	l.run.sched.order(sched.Orders{Abandon: []sched.Abandonment{{ID: l.attempt.id, Why: why}}})
}

// lost gives a decode leg up on all ranks.
func (l *simLeg) lost(why kvplane.Reason) {
	l.failed, l.reason = true, why
	l.run.s.counts.reach("decode failed: " + why.String())
	l.abandon("another rank has failed")
	l.attempt.failed(l)
}

// released is the start of decode: all ranks hold all of it.
func (l *simLeg) released() {
	s := l.run.s
	s.counts.reach("released")
	for _, n := range l.run.nodes {
		s.checkReady(n, l)
	}
	l.state = legDecode
	d := s.some(30 * time.Millisecond)
	s.after(d, func() {
		if l.run.dead || l.state != legDecode {
			return
		}
		for _, n := range l.run.nodes { // what the client was told was read from here
			s.checkReady(n, l)
		}
		l.release()
		l.attempt.decoded(l)
	})
}

func (l *simLeg) String() string {
	return fmt.Sprintf("attempt %d on %s", l.attempt.number, l.run.inc.ID())
}
