package migration

import (
	"fmt"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// Update takes the present configuration into use: what is kept, which engines drain, and what is moved.
func (m *Mover) Update() {
	s := m.current()
	now := time.Now()
	m.mu.Lock()
	defer m.unlock()
	limit := 0
	if s.Config.Migration.On() {
		limit = int(s.Config.Migration.Memory)
	}
	m.known.setLimit(limit)
	m.lookAt = now
	was := m.moves
	m.moves = fmt.Sprint(s.Config.Migration.Mode, s.Config.Migration.Uses)
	for l, q := range m.lanes {
		switch {
		case l.reason != ForDrain && was != m.moves:
			q.waiting = nil
		case l.reason == ForDrain && (s.Fleet.Engine(l.from.Name) != l.from || !l.from.Draining.Load()):
			q.waiting = nil
			delete(m.lanes, l)
		}
	}
	for _, e := range s.Fleet.Engines {
		l := lane{reason: ForDrain, from: e}
		q := m.lanes[l]
		if !e.Draining.Load() || q != nil && was == m.moves {
			continue
		}
		if q == nil {
			q = new(queue)
			m.lanes[l] = q
		}
		q.waiting = nil
		for _, c := range m.known.latest() {
			m.leaveLocked(s, e, c, now)
		}
	}
	background.Notify(m.wake)
}

// leaveLocked has a conversation moved off an engine that drains, if the engine has it.
func (m *Mover) leaveLocked(s *Snapshot, e *fleet.Engine, c *conversation, now time.Time) {
	if !s.uses(ForDrain) {
		return
	}
	for _, r := range []fleet.Role{fleet.Decode, fleet.Prefill} {
		if c.at[r].engine != e {
			continue
		}
		limits := &s.Config.Migration
		ended := Ended{Reason: ForDrain, Result: DryRun, Tokens: c.tokensAt(r), From: e.Name}
		switch {
		case c.tokensAt(r) < limits.MinTokens:
			ended.Result = Short
		case now.Sub(c.turned) > limits.MaxIdle:
			ended.Result = Idle
		case limits.Mode == config.MigrationEnabled:
			m.addLocked(lane{reason: ForDrain, from: e}, task{c: c, role: r, run: c.at[r].run, tokens: c.tokensAt(r)})
			return
		}
		m.untold = append(m.untold, ended)
		return
	}
}

// Remaining is how many conversations an engine that drains has yet to give away.
func (m *Mover) Remaining(e *fleet.Engine) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.lanes[lane{reason: ForDrain, from: e}]; q != nil {
		return len(q.waiting) + q.moving
	}
	return 0
}
