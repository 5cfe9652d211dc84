package migration

import (
	"context"
	"maps"
	"slices"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
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

// task is a move that is to begin.
type task struct {
	c      *conversation
	role   fleet.Role // of the engine that it goes to
	run    uint64     // of the engine that it comes from
	tokens int        // how many that has
}

// startDue begins the moves that the budgets allow, and returns when to look again.
func (m *Mover) startDue(now time.Time) time.Duration {
	s, again := m.current(), time.Hour
	m.mu.Lock()
	lanes := slices.Collect(maps.Keys(m.lanes))
	m.mu.Unlock()
	for _, l := range lanes {
		for more := true; more; {
			var pause time.Duration
			pause, more = m.startSome(s, l, now)
			again = min(again, pause)
		}
	}
	return again
}

const (
	// mostAtOnce is how many moves are begun or dropped before requests that end may note their conversations: to choose a target takes time.
	mostAtOnce = 8
	// busyPause is how long moves wait while too much runs in the background, or engines have more important things to do.
	busyPause = time.Second
)

// startSome begins or drops the next moves of a lane. It reports whether there may be more to begin now; if not, it returns when to look again.
func (m *Mover) startSome(s *Snapshot, l lane, now time.Time) (again time.Duration, more bool) {
	m.mu.Lock()
	defer m.unlock()
	for range mostAtOnce {
		q := m.lanes[l]
		if q == nil || len(q.waiting) == 0 {
			m.dropLane(l, q)
			return time.Hour, false
		}
		pause, ok := m.startLocked(s, l, q, now)
		if !ok {
			return time.Hour, false
		}
		if pause > 0 {
			return pause, false
		}
	}
	return time.Hour, true
}

// dropLane forgets a lane in which nothing waits or moves. Those of engines that drain stay until Update finds that they do not.
func (m *Mover) dropLane(l lane, q *queue) {
	if q != nil && len(q.waiting) == 0 && q.moving == 0 && l.reason != ForDrain {
		delete(m.lanes, l)
	}
}

// addLocked has a move wait in its lane.
func (m *Mover) addLocked(l lane, t task) {
	q := m.lanes[l]
	if q == nil {
		q = new(queue)
		m.lanes[l] = q
	}
	q.waiting = append(q.waiting, t)
}

// startLocked begins the first move of a lane, or drops it. It returns after which time it can; ok is false if that depends on the end of another
// move, which wakes Run.
func (m *Mover) startLocked(s *Snapshot, l lane, q *queue, now time.Time) (pause time.Duration, ok bool) {
	t, limits, to := q.waiting[0], &s.Config.Migration, l.to
	c, tokens := t.c, t.tokens
	drop := func(why Result) (time.Duration, bool) {
		q.waiting = q.waiting[1:]
		m.untold = append(m.untold, Ended{Reason: l.reason, Result: why, Tokens: tokens, From: l.from.Name, To: nameOf(l.to)})
		return 0, true
	}
	model := s.Fleet.Models[c.model]
	why, unable := m.unable.Of(l.from).of(t.run)
	switch {
	case l.reason != ForReplica && !m.known.has(c), c.awaited, l.reason == ForDrain && c.at[t.role].engine != l.from:
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
	if pause, ok = m.spare(s, l.reason == ForWarmth, l.from, now); pause > 0 || !ok {
		return pause, ok
	}
	if to == nil {
		to = s.Fleet.NextHome(c.asFleet(model, t.role), l.from)
	}
	if to == nil {
		return drop(NoTarget)
	}
	if pause, ok = m.spare(s, l.reason != ForDrain, to, now); pause > 0 || !ok {
		return pause, ok
	}
	if run := s.Fleet.RunOf(to); c.copyAt(to, run) >= tokens {
		if l.reason == ForDrain { // as after a move: it is to leave this engine too if it drains
			c.at[t.role] = place{to, run}
		}
		return drop(AlreadyThere)
	}
	dr := &driver{Mover: m, s: s, conn: model.Connector, c: c, ids: c.ids[:tokens], from: l.from, run: t.run, to: to, role: t.role, queue: q}
	if !m.beginLocked(dr, Ended{Reason: l.reason}, limits.Timeout, now) {
		return busyPause, true
	}
	q.waiting = q.waiting[1:]
	q.moving++
	return 0, true
}

// beginLocked begins a move, which ends within a time. It returns false if too much runs in the background.
func (m *Mover) beginLocked(dr *driver, out Ended, within time.Duration, now time.Time) bool {
	if !m.tasks.Reserve(dr.s.Config.Limits.Background) {
		return false
	}
	m.seen.running[dr] = Shown{Began: now, Reason: out.Reason.String(), State: "running", From: dr.from.Name, To: dr.to.Name, Moves: 1, Tokens: len(dr.ids)}
	dr.waits = workOf(dr.from, now).Wait + workOf(dr.to, now).Wait
	for _, e := range []*fleet.Engine{dr.from, dr.to} {
		m.budgets.Of(e).begin(now, len(dr.ids), dr.s.Config.Migration.TokensPerSecond)
	}
	m.tasks.GoReserved(within, func(ctx context.Context) {
		out.Result, out.Tokens, out.From, out.To = Failed, len(dr.ids), dr.from.Name, dr.to.Name
		defer func() { m.ended(dr, out, now) }()
		out.Result = dr.drive(ctx)
		out.Tokens = len(dr.ids)
	})
	return true
}

// spare returns after which time an engine may take part in one more move; ok is false if that depends on the end of another. With quiet it is to
// have no prompt to compute.
func (m *Mover) spare(s *Snapshot, quiet bool, e *fleet.Engine, now time.Time) (pause time.Duration, ok bool) {
	b := m.budgets.Of(e)
	if pause, ok = b.wait(now, s.Config.Migration.PerEngine); pause > 0 || !ok {
		return pause, ok
	}
	if quiet && !s.Fleet.Quiet(e, b.running, now) {
		return busyPause, true
	}
	return 0, true
}

// ended notes the end of a move.
func (m *Mover) ended(dr *driver, out Ended, begun time.Time) {
	out.Took = time.Since(begun)
	m.learn(dr, out)
	m.mu.Lock()
	if dr.queue != nil {
		dr.queue.moving--
	}
	delete(m.seen.running, dr)
	dr.c.awaited, dr.c.moved = dr.c.awaited && out.Reason != ForRoute, dr.c.moved || out.Result == Moved
	for _, e := range []*fleet.Engine{dr.from, dr.to} {
		b := m.budgets.Of(e)
		b.end()
		if out.Reason == ForRoute && (out.Result == Failed || out.Result == Refused || out.Result == Late) {
			b.failed = time.Now().Add(dr.s.Config.Migration.Timeout)
		}
	}
	if out.Result == Moved {
		out.Bytes = metadata.TokenBytes(dr.s.Fleet.Records(dr.to)) * float64(out.Tokens)
		model := dr.s.Fleet.Models[dr.c.model]
		m.slower += (out.Took.Seconds()/model.MoveSeconds(out.Tokens) - m.slower) / 8
	}
	switch {
	case (out.Result == Moved || out.Result == AlreadyThere) && out.Reason == ForDrain && m.known.has(dr.c):
		dr.c.at[dr.role] = place{dr.to, dr.s.Fleet.RunOf(dr.to)}
	case out.Result == Moved || out.Result == AlreadyThere:
		dr.c.copied(dr.to, dr.s.Fleet.RunOf(dr.to), len(dr.ids))
	case out.Result == HybridCache, out.Result == NoHandOff && !dr.from.Publishes: // one that publishes records may have restarted meanwhile
		*m.unable.Of(dr.from) = inability{dr.run, out.Result}
	}
	dr.c.lastMove = &out
	m.untold = append(m.untold, out)
	m.unlock()
	message := "conversation not moved"
	if out.Result == Moved {
		dr.c.trace.Note(dr.to, out.Tokens, dr.c.prompt)
		message = "conversation moved"
	}
	m.log.Info(message, "reason", out.Reason.String(), "result", out.Result.String(), "from", out.From, "to", out.To, "tokens", out.Tokens,
		"took_seconds", out.Took.Seconds(), "transfer_id", dr.h.Transfer)
	background.Notify(m.wake)
	if dr.told != nil {
		dr.told(out)
	}
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
