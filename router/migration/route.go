package migration

import (
	"context"
	"math"
	"time"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
)

// Offer is what can be moved of the KV of a request's conversation before the request is given to engines.
type Offer struct {
	Moves []policies.Move

	s     *Snapshot
	model *fleet.Model
	c     *conversation
	roles [2]fleet.Role // of the moves
}

// Offer returns what can be moved for the next turn of a conversation, as Plans.Offer. What of t is known only at the end of a turn need not be set.
func (m *Mover) Offer(f *fleet.Fleet, model *fleet.Model, t *Turn, cached func(*fleet.Engine) int) *Offer {
	s := m.current()
	if !s.offers(model) {
		return nil
	}
	t.identify()
	return m.plans.Offer(s, f, model, t, cached, time.Now())
}

// offers reports whether moves are offered to requests for a model.
func (s *Snapshot) offers(model *fleet.Model) bool {
	return s.Config.Migration.On() && s.uses(ForRoute) && model.Prices
}

// Offer returns what can be moved for the next turn of a conversation, nil if nothing can: the gateway does not know its tokens, it was moved since
// its latest turn, or its engines can take part in no more moves now. cached is how many tokens an engine is thought to have of the turn's prompt.
// Of t only its identity need be set. The engines are those of model, which is of f.
func (p *Plans) Offer(s *Snapshot, f *fleet.Fleet, model *fleet.Model, t *Turn, cached func(*fleet.Engine) int, now time.Time) *Offer {
	if !s.offers(model) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.known.before(t.Names)
	if c == nil || c.awaited || c.moved || now.Sub(c.turned) > s.Config.Migration.MaxIdle {
		return nil
	}
	o := &Offer{s: s, model: model, c: c}
	block := blockOf(f, model)
	for _, r := range []fleet.Role{fleet.Decode, fleet.Prefill} {
		from := c.at[r].engine
		if from == nil || r == fleet.Prefill && from == c.at[fleet.Decode].engine || !p.givesLocked(s, c.at[r], now) {
			continue
		}
		tokens := c.tokensAt(r)
		if tokens -= tokens % block; tokens < s.Config.Migration.MinTokens || tokens == 0 {
			continue
		}
		move := policies.Move{From: from.Name, Tokens: tokens, Pinned: p.pins.serves(c, from, tokens, now)}
		if !move.Pinned {
			move.Work = workOf(from, now)
		}
		move.Cached = min(cached(from), int(float64(tokens)*c.scale))
		move.Last = max(1, int(float64(block)*c.scale))
		move.Prefill = p.secondsLocked(o, from, model.Prefill, tokens, now, &move.Differs)
		move.Decode = p.secondsLocked(o, from, model.Decode, tokens, now, &move.Differs)
		o.roles[len(o.Moves)] = r
		o.Moves = append(o.Moves, move)
	}
	if len(o.Moves) == 0 {
		return nil
	}
	return o
}

// Explain is Offer for a request that does not come. done is false if the moves would not be made.
func (m *Mover) Explain(f *fleet.Fleet, model *fleet.Model, adapter string, b *openai.Body, session uint64, cached func(*fleet.Engine) int) (moves []policies.Move, done bool) {
	if Keeps(model, b, math.MaxInt) {
		t := NewTurn(model, adapter, b, "", session)
		if o := m.Offer(f, model, &t, cached); o != nil {
			moves = o.Moves
		}
	}
	return moves, m.current().Config.Migration.Mode == config.MigrationEnabled
}

// givesLocked reports whether a place can be moved from now.
func (p *Plans) givesLocked(s *Snapshot, at place, now time.Time) bool {
	e := at.engine
	if _, unable := p.unable.Of(e).of(at.run); unable || at.run != s.Fleet.RunOf(e) || s.Fleet.Engine(e.Name) != e {
		return false
	}
	return p.takesPartLocked(s, e, now)
}

// takesPartLocked reports whether an engine can take part in a move that a request waits for, and begin now.
func (p *Plans) takesPartLocked(s *Snapshot, e *fleet.Engine, now time.Time) bool {
	b := p.budgets.Of(e)
	pause, ok := b.wait(now, s.Config.Migration.PerEngine, s.Config.Migration.TokensPerSecond)
	return ok && pause == 0 && !e.Down.Load() && !now.Before(b.failed)
}

// maySendLocked reports whether an engine may send bytes of a move to another now.
func (p *Plans) maySendLocked(s *Snapshot, from, to *fleet.Engine, now time.Time) bool {
	return p.pairs.wait(pair{from, to}, now, int(s.Config.Migration.BytesPerSecond)) == 0
}

// secondsLocked is how long a move takes to each engine; 0 if it cannot be moved there now.
func (p *Plans) secondsLocked(o *Offer, from *fleet.Engine, engines []*fleet.Engine, tokens int, now time.Time, differs *float64) []float64 {
	out := make([]float64, len(engines))
	for i, to := range engines {
		if to == from || !to.Usable() || !p.takesPartLocked(o.s, to, now) || !p.maySendLocked(o.s, from, to, now) || !o.s.Fleet.Reads(to, from) {
			continue
		}
		out[i], *differs = o.model.Forecast.Migration(from.Forecast(), to.Forecast(), tokens)
	}
	return out
}

// Begin returns the move that a choice has taken of an offer. It ends within the choice's patience, or the time of Ended.Patience. It returns nil if
// it does not begin: migration.mode is dry_run, or it cannot begin any more. begun says which of them, and what is expected of a move that begins. may
// is that of Due.
func (p *Plans) Begin(o *Offer, choice policies.Choice, now time.Time, may func() bool) (w *Planned, begun Ended) {
	move, role, c := &o.Moves[choice.Move-1], o.roles[choice.Move-1], o.c
	p.mu.Lock()
	defer p.mu.Unlock()
	at := c.at[role]
	to, seconds := o.model.Decode[choice.Decode], move.Decode[choice.Decode]
	if choice.Split {
		to, seconds = o.model.Prefill[choice.Prefill], move.Prefill[choice.Prefill]
	}
	w = &Planned{Reason: ForRoute, From: at.engine, To: to, IDs: c.ids[:move.Tokens], s: o.s, c: c, run: at.run, role: role,
		predicted: secondsOf(move.Work.Wait + workOf(to, now).Wait + seconds), patience: min(secondsOf(float64(choice.Patience)), o.s.Config.Migration.Timeout)}
	w.Within = w.patience
	begun = w.ended(DryRun, 0)
	begun.From = move.From
	if o.s.Config.Migration.Mode == config.MigrationEnabled {
		if p.known.has(c) && !c.awaited && !c.moved && at.engine.Name == move.From && p.givesLocked(o.s, at, now) && p.takesPartLocked(o.s, to, now) && p.maySendLocked(o.s, at.engine, to, now) && may() {
			w.Pin = p.pins.take(c, at.engine, move.Tokens, blockOf(o.s.Fleet, o.model), now)
			p.beginLocked(w, now)
			c.awaited = true
			return w, begun
		}
		begun.Result = Left
	}
	p.tellLocked(begun, now)
	return nil, begun
}

// Routed is a move that a request waits for.
type Routed struct {
	Done  chan struct{} // is closed at its end
	Ended Ended         // what became of it, then
	stop  context.CancelFunc
	move  *driver
}

// Asked is the engine that was asked last; nil if none was. It may be called at any time.
func (r *Routed) Asked() *fleet.Engine { return r.move.asked.Load() }

// Stop ends the move, as nobody waits for it any more. It may be called at any time, and does not wait.
func (r *Routed) Stop() { r.stop() }

// Begin begins the move that a choice has taken of an offer, as Plans.Begin. It returns nil if it does not.
func (m *Mover) Begin(o *Offer, choice policies.Choice) (r *Routed, begun Ended) {
	w, begun := m.plans.Begin(o, choice, time.Now(), m.mayBegin(o.s))
	m.tell()
	if w == nil {
		return nil, begun
	}
	unneeded, stop := context.WithCancel(context.Background())
	r = &Routed{Done: make(chan struct{}), Ended: begun, stop: stop}
	r.move = &driver{Planned: w, unneeded: unneeded, told: func(e Ended) {
		stop()
		r.Ended = e
		close(r.Done)
	}}
	m.begin(r.move)
	return r, begun
}

func secondsOf(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
