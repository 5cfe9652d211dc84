package monitor

import (
	"context"
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet"
)

// publishStock keeps the records of a stock engine's present run published. Whichever gateway comes first publishes; the
// others see it in their copies, and renew only what is not renewed. All call one run by one generation: who sees that the
// store knows another one takes it over.
func (m *Monitor) publishStock(ctx context.Context, e *fleet.Engine, at fleet.SideChannel) {
	mine := m.records.Of(e)
	now := time.Now()
	lease := max(stockLease, 4*m.current().Timeouts.SideChannel)
	known := m.current().Fleet.Records(e)
	same := len(known) > 0 && known[0].EngineID == at.EngineID
	if same && len(known) == at.Size.PP*at.Size.TP {
		*mine = known
		if !dueAt(known, lease).Before(now) {
			return
		}
	}
	recs := *mine
	if len(recs) == 0 || recs[0].EngineID != at.EngineID {
		var err error
		if recs, err = m.current().Stock.All(ctx, at); err != nil {
			m.log.Debug("side channel", "engine", e.Name, "err", err) // the next look tells why
			return
		}
	}
	if !same && recs[0].Generation == 0 { // a name is about to be chosen: another gateway may just have done so
		known = m.current().Stock.Known(ctx, e.Name)
		same = len(known) > 0 && known[0].EngineID == at.EngineID
	}
	run := metadata.Incarnation{Engine: e.Name, Generation: recs[0].Generation}
	switch {
	case same:
		run = known[0].Incarnation
	case run.Generation == 0:
		run.Generation = uint64(now.UnixNano())
		if len(known) > 0 {
			run.Generation = max(run.Generation, known[0].Generation+1)
		}
	}
	*mine = dated(e, recs, run, now, lease)
	switch err := m.current().Stock.Publish(ctx, *mine); {
	case errors.Is(err, metadata.ErrStale): // the local copy is about to show what the store knows
		for i := range *mine {
			(*mine)[i].Generation = 0
		}
		m.log.Debug("records of a stock engine", "engine", e.Name, "err", err)
	case err != nil && ctx.Err() == nil:
		m.log.Warn("records of a stock engine", "engine", e.Name, "err", err)
	}
}

// dueAt is when records are renewed: when three fifths of the lease of the oldest are over. A gateway's copy may show
// the times of a renewal only when half of the lease is over.
func dueAt(recs []metadata.Record, lease time.Duration) time.Time {
	due := recs[0].Published
	for _, rec := range recs {
		if rec.Published.Before(due) {
			due = rec.Published
		}
	}
	return due.Add(lease * 3 / 5)
}

// dated returns the records of a run with all that the engine does not say itself.
func dated(e *fleet.Engine, recs []metadata.Record, run metadata.Incarnation, now time.Time, lease time.Duration) []metadata.Record {
	out := make([]metadata.Record, len(recs))
	for i, rec := range recs {
		rec.Incarnation, rec.Role, rec.Connector, rec.HTTP = run, e.Origin.Role, e.Origin.Connector.Traits().Name, e.Origin.Entry.URL
		published := now.UTC().Round(0)
		if !published.After(rec.Published) { // by a gateway whose clock is ahead
			published = rec.Published.Add(1)
		}
		rec.Published, rec.Expires = published, published.Add(lease)
		rec.KeyID, rec.Signature, rec.Payload = "", nil, nil
		out[i] = rec
	}
	return out
}

// withdraw removes the records of a run that is over.
func (m *Monitor) withdraw(ctx context.Context, e *fleet.Engine) {
	if err := m.current().Stock.Withdraw(ctx, *m.records.Of(e)); err != nil {
		m.log.Warn("records of a stock engine that is gone", "engine", e.Name, "err", err)
	}
	*m.records.Of(e) = nil
}
