package migration

import (
	"fmt"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// Update takes the present configuration into use: what is kept, which engines drain, and what is moved.
func (p *Plans) Update(s *Snapshot, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := 0
	if s.Config.Migration.On() {
		limit = int(s.Config.Migration.Memory)
	}
	p.known.setLimit(limit)
	p.lookAt = now
	was := p.moves
	p.moves = fmt.Sprint(s.Config.Migration.Mode, s.Config.Migration.Uses)
	for l, q := range p.lanes {
		switch {
		case l.reason != ForDrain && was != p.moves:
			q.waiting = nil
		case l.reason == ForDrain && (s.Fleet.Engine(l.from.Name) != l.from || !l.from.Draining.Load()):
			q.waiting = nil
			delete(p.lanes, l)
		}
	}
	for _, e := range s.Fleet.Engines {
		l := lane{reason: ForDrain, from: e}
		q := p.lanes[l]
		if !e.Draining.Load() || q != nil && was == p.moves {
			continue
		}
		if q == nil {
			q = new(queue)
			p.lanes[l] = q
		}
		q.waiting = nil
		for _, c := range p.known.latest() {
			p.leaveLocked(s, e, c, now)
		}
	}
}

// leaveLocked has a conversation moved off an engine that drains, if the engine has it.
func (p *Plans) leaveLocked(s *Snapshot, e *fleet.Engine, c *conversation, now time.Time) {
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
			p.addLocked(lane{reason: ForDrain, from: e}, task{c: c, role: r, run: c.at[r].run, tokens: c.tokensAt(r)})
			return
		}
		p.tellLocked(ended, now)
		return
	}
}

// Remaining is how many conversations an engine that drains has yet to give away.
func (p *Plans) Remaining(e *fleet.Engine) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.lanes[lane{reason: ForDrain, from: e}]; q != nil {
		return len(q.waiting) + q.moving
	}
	return 0
}
