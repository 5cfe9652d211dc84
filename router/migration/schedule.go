package migration

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pdrouter/router/fleet"
)

// lane is what moves have in common that begin one after the other.
type lane struct {
	reason   Reason
	from, to *fleet.Engine // to is nil for moves off an engine that drains: the policy says where to when they begin
}

// queue is what is left to do in a lane.
type queue struct {
	waiting []task // what is to begin first first
	moving  int
}

// take takes out a move that waits. It copies the few moves before it one place on, not the many that may be behind it.
func (q *queue) take(i int) {
	copy(q.waiting[1:], q.waiting[:i])
	q.waiting[0] = task{}
	q.waiting = q.waiting[1:]
}

// task is a move that is to begin.
type task struct {
	c      *conversation
	role   fleet.Role // of the engine that it goes to
	run    uint64     // of the engine that it comes from
	tokens int        // how many that has
}

const (
	// mostAtOnce is how many moves are begun or dropped before requests that end may note their conversations: to choose a target takes time.
	mostAtOnce = 8
	// busyPause is how long moves wait while too much runs in the background, or engines have more important things to do.
	busyPause = time.Second
)

// Due returns moves that are to begin now, within the budgets, and when to ask again. With more there may be more now. may takes a place for one
// move among what runs in the background; it returns false if there is none.
func (p *Plans) Due(s *Snapshot, now time.Time, may func() bool) (due []*Planned, again time.Duration, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again = time.Hour
	some := 0 // begun or dropped
	for _, l := range slices.SortedFunc(maps.Keys(p.lanes), lane.compare) {
		q := p.lanes[l]
		for i := 0; i < min(len(q.waiting), mostAtOnce); {
			if some == mostAtOnce {
				return due, 0, true
			}
			w, pause, waits := p.startLocked(s, l, q, i, now, may)
			if w != nil {
				due = append(due, w)
			}
			if pause > 0 {
				again = min(again, pause)
			}
			if waits == allWait {
				break
			}
			if waits == oneWaits {
				i++
			} else {
				some++
			}
		}
		p.dropLane(l, q)
	}
	return due, again, false
}

// compare orders lanes, so that the same moves are begun in the same order.
func (l lane) compare(o lane) int {
	return cmp.Or(cmp.Compare(l.reason, o.reason), cmp.Compare(l.from.Name, o.from.Name), cmp.Compare(nameOf(l.to), nameOf(o.to)))
}

// dropLane forgets a lane in which nothing waits or moves. Those of engines that drain stay until Update finds that they do not.
func (p *Plans) dropLane(l lane, q *queue) {
	if len(q.waiting) == 0 && q.moving == 0 && l.reason != ForDrain {
		delete(p.lanes, l)
	}
}

// addLocked has a move wait in its lane.
func (p *Plans) addLocked(l lane, t task) {
	q := p.lanes[l]
	if q == nil {
		q = new(queue)
		p.lanes[l] = q
	}
	q.waiting = append(q.waiting, t)
}

// waits is which moves of a lane have to wait.
type waits uint8

const (
	noneWaits waits = iota
	oneWaits        // those behind it may go to other engines
	allWait
)

// startLocked begins a move of a lane, or drops it, or returns after which time it can begin: 0 if that depends on the end of another move, after which
// Due is to be asked again.
func (p *Plans) startLocked(s *Snapshot, l lane, q *queue, i int, now time.Time, may func() bool) (w *Planned, pause time.Duration, who waits) {
	t, to := q.waiting[i], l.to
	c, tokens := t.c, t.tokens
	drop := func(why Result) (*Planned, time.Duration, waits) {
		q.take(i)
		p.tellLocked(Ended{Reason: l.reason, Result: why, Tokens: tokens, From: l.from.Name, To: nameOf(to)}, now)
		return nil, 0, noneWaits
	}
	model := s.Fleet.Models[c.model]
	why, unable := p.unable.Of(l.from).of(t.run)
	switch {
	case l.reason != ForReplica && !p.known.has(c), c.awaited, l.reason == ForDrain && c.at[t.role].engine != l.from:
		return drop(Left)
	case t.run != s.Fleet.RunOf(l.from):
		return drop(Restarted)
	case unable:
		return drop(why)
	case l.from.Down.Load(), s.Fleet.Engine(l.from.Name) != l.from:
		return drop(Refused)
	case model == nil, to != nil && (s.Fleet.Engine(to.Name) != to || !to.Usable()):
		return drop(NoTarget)
	}
	if tokens -= tokens % blockOf(s.Fleet, model); tokens == 0 {
		return drop(Short)
	}
	if pause, ok := p.spare(s, l.reason == ForWarmth, l.from, now); pause > 0 || !ok {
		return nil, pause, allWait
	}
	if to == nil {
		to = s.Fleet.NextHome(c.asFleet(model, t.role, now), l.from)
	}
	if to == nil {
		return drop(NoTarget)
	}
	if pause, ok := p.spare(s, l.reason != ForDrain, to, now); pause > 0 || !ok {
		return nil, pause, allWait
	}
	if run := s.Fleet.RunOf(to); c.copyAt(to, run) >= tokens {
		if l.reason == ForDrain { // as after a move: it is to leave this engine too if it drains
			c.at[t.role] = place{to, run}
		}
		return drop(AlreadyThere)
	}
	if pause = p.pairs.wait(pair{l.from, to}, now, int(s.Config.Migration.BytesPerSecond)); pause > 0 {
		return nil, pause, oneWaits
	}
	if !may() {
		return nil, busyPause, allWait
	}
	w = &Planned{Reason: l.reason, From: l.from, To: to, IDs: c.ids[:tokens], Within: s.Config.Migration.Timeout, s: s, c: c, run: t.run, role: t.role, queue: q}
	w.Pin = p.pins.take(c, l.from, tokens, blockOf(s.Fleet, model), now)
	p.beginLocked(w, now)
	q.take(i)
	q.moving++
	return w, 0, noneWaits
}

// spare returns after which time an engine may take part in one more move; ok is false if that depends on the end of another. With quiet it is to
// have no prompt to compute.
func (p *Plans) spare(s *Snapshot, quiet bool, e *fleet.Engine, now time.Time) (pause time.Duration, ok bool) {
	b := p.budgets.Of(e)
	if pause, ok = b.wait(now, s.Config.Migration.PerEngine, s.Config.Migration.TokensPerSecond); pause > 0 || !ok {
		return pause, ok
	}
	if quiet && !s.Fleet.Quiet(e, now) {
		return busyPause, true
	}
	return 0, true
}

func nameOf(e *fleet.Engine) string {
	if e == nil {
		return ""
	}
	return e.Name
}

// usualBlock is how many tokens a block has where it is not known: engines whose blocks are larger read a part of one more, which they do not keep.
const usualBlock = 16

// blockOf is how many tokens a block of the model's engines has. Not all of them need to say it, as they understand each other.
func blockOf(f *fleet.Fleet, m *fleet.Model) int {
	for _, engines := range [][]*fleet.Engine{m.Prefill, m.Decode} {
		for _, e := range engines {
			if known := f.Records(e); len(known) > 0 && known[0].Layout.BlockTokens > 0 {
				return known[0].Layout.BlockTokens
			}
		}
	}
	return usualBlock
}
