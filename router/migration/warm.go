package migration

import (
	"slices"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// arrivals are the runs of engines that have begun to serve.
type arrivals struct {
	runs map[*fleet.Engine]uint64 // those that were seen; nil before the first look
}

// arrived returns the engines of which another run serves than the one that was seen last, or which were not seen. Of engines that are there
// at the first look it is not known when they began.
func (a *arrivals) arrived(s *Snapshot, now time.Time) (out []*fleet.Engine) {
	first := a.runs == nil
	runs := make(map[*fleet.Engine]uint64, len(s.Fleet.Engines))
	for _, e := range s.Fleet.Engines {
		run, seen := a.runs[e]
		is := s.Fleet.RunOf(e)
		switch {
		case first:
			runs[e] = is
		case seen && run == is:
			runs[e] = run
		case e.Serves(now, *s.Config.Health.SlowStart):
			runs[e] = is
			out = append(out, e)
		case seen:
			runs[e] = run
		}
	}
	a.runs = runs
	return out
}

// warm has engines that have begun to serve given the conversations whose next turns they would be given, as far as others have them.
func (p *Plans) warm(s *Snapshot, now time.Time) (found []Found) {
	for _, e := range p.arrived(s, now) {
		model := s.Fleet.Models[e.Model]
		for role, engines := range [...][]*fleet.Engine{fleet.Prefill: model.Prefill, fleet.Decode: model.Decode} {
			role := fleet.Role(role)
			if !slices.Contains(engines, e) {
				continue
			}
			offers, all := p.offersTo(s, e, role, now)
			room := all / max(serving(engines)-1, 1) // as many as others have, in the mean
			if of := e.CacheSize().Tokens(); of > 0 {
				room = min(room, of)
			}
			chosen := choose(offers, room, func(o *offer) bool { return s.Fleet.Home(o.c.asFleet(model, role, now)) == e })
			found = p.offer(s, ForWarmth, chosen, now, found)
		}
	}
	return found
}

// offersTo returns what engines have that an engine can be given, the conversation with the latest turn first, and how many tokens all of the
// model's conversations have.
func (p *Plans) offersTo(s *Snapshot, to *fleet.Engine, role fleet.Role, now time.Time) (out []offer, all int) {
	limits := &s.Config.Migration
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.known.latest() {
		if c.model != to.Model || now.Sub(c.turned) > limits.MaxIdle {
			continue
		}
		if all += c.tokensAt(role); c.at[role] == (place{to, s.Fleet.RunOf(to)}) {
			continue
		}
		o := offer{c: c, role: role, to: to, worth: c.turns.at(now, limits.MaxIdle)}
		for _, r := range []fleet.Role{fleet.Decode, fleet.Prefill} {
			if from := c.at[r]; c.tokensAt(r) > o.tokens && s.has(from) && s.Fleet.Reads(to, from.engine) {
				o.from, o.run, o.tokens = from.engine, from.run, c.tokensAt(r)
			}
		}
		if o.tokens >= limits.MinTokens {
			out = append(out, o)
		}
	}
	return out, all
}

// Found is what was found that is to be moved for one reason, or would be.
type Found struct {
	Reason        Reason
	Moves, Tokens int
}

// offer has what was chosen moved, or says what would be. It appends that to found.
func (p *Plans) offer(s *Snapshot, why Reason, chosen []offer, now time.Time, found []Found) []Found {
	if len(chosen) == 0 {
		return found
	}
	f := Found{why, len(chosen), 0}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range chosen {
		f.Tokens += o.tokens
		if s.Config.Migration.Mode == config.MigrationEnabled {
			p.addLocked(lane{why, o.from, o.to}, task{c: o.c, role: o.role, run: o.run, tokens: o.tokens})
		} else {
			p.tellLocked(Ended{Reason: why, Result: DryRun, Tokens: o.tokens, From: o.from.Name, To: o.to.Name}, now)
		}
	}
	return append(found, f)
}

// has reports whether a run of an engine is there still, and can be asked.
func (s *Snapshot) has(p place) bool {
	return p.engine != nil && !p.engine.Down.Load() && s.Fleet.Engine(p.engine.Name) == p.engine && s.Fleet.RunOf(p.engine) == p.run
}

// serving is how many of the engines are given requests, at least 1.
func serving(engines []*fleet.Engine) (n int) {
	for _, e := range engines {
		if e.Usable() {
			n++
		}
	}
	return max(n, 1)
}
