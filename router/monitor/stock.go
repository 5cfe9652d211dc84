package monitor

import (
	"bytes"
	"context"
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// Stock asks stock engines what they say of their ranks, and has it published. Its methods are called off every
// request's path, may block until their context ends, and must be safe for concurrent use.
type Stock interface {
	// First asks for the first rank of whichever run of the engine answers; EngineID says which.
	First(ctx context.Context, at fleet.SideChannel) (metadata.Record, error)
	// All asks for all ranks of the run that is named, and fails if another one answers.
	All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error)
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

// watchSideChannel checks an engine's side channel periodically until ctx ends.
func (m *Monitor) watchSideChannel(ctx context.Context, e *fleet.Engine) {
	tick := time.NewTicker(m.current().Timeouts.SideChannel)
	defer tick.Stop()
	for {
		check, cancel := context.WithTimeout(ctx, m.current().Timeouts.SideChannelAnswer())
		m.CheckSideChannel(check, e)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.Channel.Wake:
		}
	}
}

// CheckSideChannel asks an engine for its first rank, which every engine has, and has the records of all ranks published.
func (m *Monitor) CheckSideChannel(ctx context.Context, e *fleet.Engine) {
	s, recs, c := e.Channel, m.records.Of(e), e.Endpoint.Load()
	at, ok := e.SideChannel(c)
	if !ok || e.Down.Load() {
		return
	}
	seen := s.Latest.Load()
	was := fleet.ChannelReport{}
	if seen != nil {
		was = *seen
	}
	if at.EngineID != "" && at.EngineID != was.Run { // the run was reported since
		was = fleet.ChannelReport{Run: at.EngineID}
	}
	if len(*recs) > 0 && was.Run != (*recs)[0].EngineID {
		m.withdraw(ctx, e)
	}
	rec, err := m.current().Stock.First(ctx, at)
	if err != nil {
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			m.unanswered(e, seen, was, err)
		}
		return
	}
	if !s.Latest.CompareAndSwap(seen, &fleet.ChannelReport{Run: rec.EngineID, Compatibility: rec.Compatibility}) {
		return // another check was faster
	}
	if was.Dead() {
		m.log.Info("side channel answers again", "engine", e.Name)
	}
	if was.Run != "" && rec.EngineID != was.Run {
		if e.KnownRun(c, seen) != "" {
			m.Restarted(e, c)
		}
		if len(*recs) > 0 {
			m.withdraw(ctx, e)
		}
		return
	}
	if was.Silent() || was.Compatibility == "" {
		m.pairs.Schedule()
	}
	if c != nil {
		m.publishStock(ctx, e, at)
	}
}

// unanswered notes a check that got no answer.
func (m *Monitor) unanswered(e *fleet.Engine, seen *fleet.ChannelReport, was fleet.ChannelReport, err error) {
	now := was
	now.Missed++
	if e.Channel.Latest.CompareAndSwap(seen, &now) && now.Silent() && !was.Silent() {
		m.log.Warn("side channel does not answer", "engine", e.Name, "answered_before", now.Compatibility != "", "err", err)
	}
}

// Recognize finds out whether an engine that was down is still the same run: it may just have been too busy to say that
// it is healthy, and then nothing has changed. One that cannot be asked, or does not answer, may be another run, so its
// pairs shake hands again. Handshakes under way go on until another run has been seen: with a run that is over they fail
// by themselves, and ending one that would have succeeded leaks what prefill holds for it.
func (m *Monitor) Recognize(ctx context.Context, e *fleet.Engine) {
	if e.Channel == nil { // it publishes its runs, or it needs no handshake
		return
	}
	c, seen := e.Endpoint.Load(), e.Channel.Latest.Load()
	run := e.KnownRun(c, seen)
	if run == "" && e.Origin.Role == metadata.Prefill {
		return
	}
	if at, ok := e.SideChannel(c); ok && run != "" && m.current().Stock != nil {
		ctx, cancel := context.WithTimeout(ctx, m.current().Timeouts.SideChannelAnswer())
		defer cancel()
		rec, err := m.current().Stock.First(ctx, at)
		if err == nil {
			if rec.EngineID != run && e.Channel.Latest.CompareAndSwap(seen, &fleet.ChannelReport{Run: rec.EngineID, Compatibility: rec.Compatibility}) {
				m.Restarted(e, c)
			}
			return
		}
	}
	e.Endpoint.CompareAndSwap(c, nil)
	m.leaks.Restarted(e)
	for _, o := range m.current().Fleet.Pairs {
		pair := fleet.StockRuns(o.Prefill, o.Decode)
		if (o.Prefill == e || o.Decode == e) && m.pairs.Ready(pair) {
			m.pairs.ForgetPair(pair)
		}
	}
}

// ObserveRun notes which run of a prefill engine has answered. It is cheap while that is the one that is known.
func (m *Monitor) ObserveRun(e *fleet.Engine, kv []byte) {
	was := e.Endpoint.Load()
	if was == nil || bytes.Contains(kv, was.Quoted) { // if none is known, a handshake is under way
		return
	}
	if c, ok := connector.ParseEndpoint(kv); ok {
		m.Moved(e, was, c)
	}
}

// Moved notes that a stock prefill engine, known by endpoint was, has answered as another run: all its pairs are void.
// Of many that notice, the first counts.
func (m *Monitor) Moved(e *fleet.Engine, was, now *connector.PrefillEndpoint) {
	if was.EngineID == now.EngineID || !e.Endpoint.CompareAndSwap(was, now) {
		return
	}
	e.Generation.Add(1)
	m.forgetRun(e)
	e.PollSoon()
	m.pairs.Forget(e.Name)
	m.log.Info("engine restarted", "engine", e.Name)
	m.pairs.Schedule()
}

// Restarted notes that another run of a stock engine answers than the one with endpoint was. Where and how large it
// is, the next handshake learns.
func (m *Monitor) Restarted(e *fleet.Engine, was *connector.PrefillEndpoint) {
	if was != nil && !e.Endpoint.CompareAndSwap(was, nil) { // another caller was faster
		return
	}
	e.Generation.Add(1)
	m.forgetRun(e)
	m.pairs.Forget(e.Name)
	m.log.Info("engine restarted", "engine", e.Name)
	m.pairs.Schedule()
}

// forgetRun drops what is known of the ranks of an engine that has restarted.
func (m *Monitor) forgetRun(e *fleet.Engine) {
	e.HandOff.Reset()
	e.TokenIDs.Reset()
	if forget := m.current().RunOver; forget != nil {
		forget(e.Name)
	}
}
