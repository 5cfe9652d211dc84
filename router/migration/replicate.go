package migration

import (
	"slices"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/tokens"
)

const (
	// planEvery is how often it is looked for engines that have begun to serve.
	planEvery = time.Second
	// replicateEvery is how often it is looked for what conversations share, at most.
	replicateEvery = 10 * time.Second
	// replicatePart is what part of the time that may take.
	replicatePart = 50
)

// Look looks for moves that no engine's drain asks for, and returns when to look again, and what it has found. One goroutine calls it.
func (p *Plans) Look(s *Snapshot, now time.Time) (again time.Duration, found []Found) {
	again = time.Hour
	if !s.Config.Migration.On() {
		return again, nil
	}
	if s.uses(ForWarmth) {
		found = p.warm(s, now)
		again = planEvery
	} else {
		p.arrivals = arrivals{}
	}
	if s.uses(ForReplica) {
		p.mu.Lock()
		pause := p.lookAt.Sub(now)
		p.mu.Unlock()
		if pause <= 0 {
			p.forgetReplicas()
			found = p.replicate(s, now, found)
			pause = replicateEvery
			p.Rest(now.Add(pause))
		}
		again = min(again, pause)
	}
	return again, found
}

// Rest has Look not look before a time for what conversations share.
func (p *Plans) Rest(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until.After(p.lookAt) {
		p.lookAt = until
	}
}

// forgetReplicas drops what waits since an earlier look: this one goes by what there is now.
func (p *Plans) forgetReplicas() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l, q := range p.lanes {
		if l.reason == ForReplica {
			q.waiting = nil
		}
	}
}

// kind are conversations that may share KV, and the role of the engines that computed their prompts.
type kind struct {
	model, asked, salt string
	role               fleet.Role
}

// replicate has what many conversations begin with copied, where one engine alone has it and another is less busy. It appends that to found.
func (p *Plans) replicate(s *Snapshot, now time.Time, found []Found) []Found {
	limits := &s.Config.Migration
	for k, all := range p.beginnings(s, now) {
		model := s.Fleet.Models[k.model]
		engines := model.Decode
		if k.role == fleet.Prefill {
			engines = model.Prefill
		}
		var offers []offer
		for _, sh := range sharedOf(all, limits.MinTokens) {
			from := sh.onlyOneOf(engines)
			if from == nil {
				continue
			}
			to := lessBusy(s, engines, from.engine, now)
			if to == nil {
				continue
			}
			o := offer{c: sh.c, role: k.role, from: from.engine, run: from.run, to: to, tokens: sh.tokens}
			// Of the conversations to come the two engines will have half each.
			seconds, _ := model.Forecast.Migration(from.engine.Forecast(), to.Forecast(), sh.tokens)
			if o.worth = sh.n/2*model.ComputeSeconds(sh.tokens) - seconds; o.worth > 0 {
				offers = append(offers, o)
			}
		}
		room := limits.TokensPerSecond * int(replicateEvery/time.Second)
		found = p.offer(s, ForReplica, choose(offers, room, apart()), now, found)
	}
	return found
}

// apart returns a function that takes the offers that do not begin with one that was taken, nor one that was taken with them.
func apart() func(*offer) bool {
	var taken [][]uint32
	return func(o *offer) bool {
		ids := o.c.ids[:o.tokens]
		for _, of := range taken {
			if tokens.CommonPrefix(of, ids) == min(len(of), len(ids)) {
				return false
			}
		}
		taken = append(taken, ids)
		return true
	}
}

// beginnings returns the conversations that may share KV, by their kinds.
func (p *Plans) beginnings(s *Snapshot, now time.Time) map[kind][]beginning {
	out := map[kind][]beginning{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.known.latest() {
		role := fleet.Decode
		if c.at[fleet.Prefill].engine != nil {
			role = fleet.Prefill
		}
		if s.Fleet.Models[c.model] == nil || now.Sub(c.turned) > s.Config.Migration.MaxIdle {
			continue
		}
		b := beginning{c: c, tokens: c.tokensAt(role), n: decayed{1, c.begun}.at(now, s.Config.Migration.MaxIdle)}
		for r, at := range c.at {
			if s.has(at) {
				b.held = append(b.held, held{at, c.tokensAt(fleet.Role(r))})
			}
		}
		for _, h := range c.copies {
			if s.has(h.place) {
				b.held = append(b.held, h)
			}
		}
		k := kind{c.model, c.asked, string(c.salt), role}
		out[k] = append(out[k], b)
	}
	return out
}

// lessBusy returns the engine with the fewest requests of those that have fewer than the one that it is to read from; nil if there is none.
func lessBusy(s *Snapshot, engines []*fleet.Engine, from *fleet.Engine, now time.Time) *fleet.Engine {
	var to *fleet.Engine
	for least := from.Requests(now); least > 0; {
		next := slices.IndexFunc(engines, func(e *fleet.Engine) bool {
			return e.Requests(now) < least && e.Serves(now, *s.Config.Health.SlowStart) && s.Fleet.Reads(e, from)
		})
		if next < 0 {
			break
		}
		to = engines[next]
		least = to.Requests(now)
	}
	return to
}
