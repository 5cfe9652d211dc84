package router

import (
	"bytes"
	"context"
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
)

// Stock asks stock engines what they say of their ranks, and has it published. Its methods are called off every
// request's path, may block until their context ends, and must be safe for concurrent use.
type Stock interface {
	// First asks for the first rank of whichever run of the engine answers; EngineID says which.
	First(ctx context.Context, at SideChannel) (metadata.Record, error)
	// All asks for all ranks of the run that is named, and fails if another one answers.
	All(ctx context.Context, at SideChannel) ([]metadata.Record, error)
	// Known returns what the store itself holds of an engine, which the local copy may not show yet; nothing if that cannot be
	// read.
	Known(ctx context.Context, engine string) []metadata.Record
	// Publish stores the records of one run of an engine, and vouches for them. It returns metadata.ErrStale if the store
	// knows something newer.
	Publish(ctx context.Context, recs []metadata.Record) error
	// Withdraw removes the records of a run that is over. It is no error if they are gone.
	Withdraw(ctx context.Context, recs []metadata.Record) error
}

// stockLease is how long a record of a stock engine lives without renewal, at least.
const stockLease = 30 * time.Second

// watchSide looks at an engine's side channel now and then, until ctx ends.
func (m *monitor) watchSide(ctx context.Context, e *engine) {
	tick := time.NewTicker(m.current().cfg.Timeouts.SideChannel)
	defer tick.Stop()
	for {
		looking, cancel := context.WithTimeout(ctx, m.current().cfg.Timeouts.SideChannelAnswer())
		m.lookAt(looking, e)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.side.wake:
		}
	}
}

// lookAt asks an engine for its first rank, which every engine has, and has the records of all ranks published.
func (m *monitor) lookAt(ctx context.Context, e *engine) {
	s, recs, c := e.side, m.records.of(e), e.coord.Load()
	at, ok := e.channel(c)
	if !ok || e.down.Load() {
		return
	}
	seen := s.seen.Load()
	was := sighting{}
	if seen != nil {
		was = *seen
	}
	if at.EngineID != "" && at.EngineID != was.run { // the run was reported since
		was = sighting{run: at.EngineID}
	}
	if len(*recs) > 0 && was.run != (*recs)[0].EngineID {
		m.withdraw(ctx, e)
	}
	rec, err := m.current().parts.Stock.First(ctx, at)
	if err != nil {
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			m.unanswered(e, seen, was, err)
		}
		return
	}
	if !s.seen.CompareAndSwap(seen, &sighting{run: rec.EngineID, compat: rec.Compatibility}) {
		return // somebody else has asked meanwhile
	}
	if was.dead() {
		m.log.Info("side channel answers again", "engine", e.name)
	}
	if was.run != "" && rec.EngineID != was.run {
		if e.known(c, seen) != "" {
			m.restarted(e, c)
		}
		if len(*recs) > 0 {
			m.withdraw(ctx, e)
		}
		return
	}
	if was.gone() || was.compat == "" {
		m.pairs.schedule()
	}
	if c != nil {
		m.publishStock(ctx, e, at)
	}
}

// unanswered notes a look that got no answer.
func (m *monitor) unanswered(e *engine, seen *sighting, was sighting, err error) {
	now := was
	now.missed++
	if e.side.seen.CompareAndSwap(seen, &now) && now.gone() && !was.gone() {
		m.log.Warn("side channel does not answer", "engine", e.name, "answered_before", now.compat != "", "err", err)
	}
}

// recognize finds out whether an engine that was down is still the same run: it may just have been too busy to say that
// it is healthy, and then nothing has changed. One that cannot be asked, or does not answer, may be another run, so its
// pairs shake hands again. Handshakes under way go on until another run has been seen: with a run that is over they fail
// by themselves, and to end one that would have succeeded leaves behind what prefill holds for it.
func (m *monitor) recognize(ctx context.Context, e *engine) {
	if e.side == nil { // it publishes its runs, or it needs no handshake
		return
	}
	c, seen := e.coord.Load(), e.side.seen.Load()
	run := e.known(c, seen)
	if run == "" && e.origin.role == metadata.Prefill {
		return
	}
	if at, ok := e.channel(c); ok && run != "" && m.current().parts.Stock != nil {
		ctx, cancel := context.WithTimeout(ctx, m.current().cfg.Timeouts.SideChannelAnswer())
		defer cancel()
		rec, err := m.current().parts.Stock.First(ctx, at)
		if err == nil {
			if rec.EngineID != run && e.side.seen.CompareAndSwap(seen, &sighting{run: rec.EngineID, compat: rec.Compatibility}) {
				m.restarted(e, c)
			}
			return
		}
	}
	e.coord.CompareAndSwap(c, nil)
	m.leaks.restarted(e)
	for _, o := range m.current().fleet.couples {
		pair := metadata.Pair{Prefill: o.prefill.incarnation(), Decode: o.decode.incarnation()}
		if (o.prefill == e || o.decode == e) && m.pairs.Ready(pair) {
			m.pairs.ForgetPair(pair)
		}
	}
}

// sawRun notes which run of a prefill engine has answered. It is cheap while that is the one that is known.
func (m *monitor) sawRun(e *engine, kv []byte) {
	was := e.coord.Load()
	if was == nil || bytes.Contains(kv, was.Quoted) { // if none is known, a handshake is under way
		return
	}
	if c, ok := connector.ParseCoordinates(kv); ok {
		m.moved(e, was, c)
	}
}

// moved notes that a stock prefill engine, known by these coordinates, has answered as another run: all its pairs are void.
// Of many that notice, the first counts.
func (m *monitor) moved(e *engine, was, now *connector.PrefillEndpoint) {
	if was.EngineID == now.EngineID || !e.coord.CompareAndSwap(was, now) {
		return
	}
	e.generation.Add(1)
	m.forgetRun(e)
	e.look()
	m.pairs.Forget(e.name)
	m.log.Info("engine restarted", "engine", e.name)
	m.pairs.schedule()
}

// restarted notes that another run of a stock engine answers than the one with these coordinates. Where and how large it
// is, the next handshake learns.
func (m *monitor) restarted(e *engine, was *connector.PrefillEndpoint) {
	if was != nil && !e.coord.CompareAndSwap(was, nil) { // somebody else has noticed
		return
	}
	e.generation.Add(1)
	m.forgetRun(e)
	m.pairs.Forget(e.name)
	m.log.Info("engine restarted", "engine", e.name)
	m.pairs.schedule()
}

// forgetRun drops what is known of the ranks of an engine that was started anew.
func (m *monitor) forgetRun(e *engine) {
	e.handing.renew()
	if agent := m.current().parts.Reclaim; agent != nil {
		agent.Forget(e.name)
	}
}
