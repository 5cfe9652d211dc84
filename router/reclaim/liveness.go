package reclaim

import (
	"context"
	"errors"
	"syscall"

	"pdrouter/internal/background"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/monitor"
)

// decodeOver reports whether the run of decode is over, after up to three checks.
func decodeOver(ctx context.Context, m *Job) bool {
	if m.run == "" || m.Snapshot.Agent == nil {
		return false
	}
	var check livenessCheck
	was := &connector.PrefillEndpoint{EngineID: m.run, TP: 1, PP: 1}
	for range 3 {
		switch check.at(ctx, m.Snapshot, m.Decode, was) {
		case runOver:
			return true
		case runLives:
			return false
		}
		background.Sleep(ctx, monitor.RefusedFor)
	}
	return false
}

// livenessCheck finds out whether a run is over; it may be repeated.
type livenessCheck struct{ http monitor.Refusing }

// at finds out whether the run at this endpoint is over: another run answers in its place, or both its addresses refuse connections,
// twice. Silence is no proof.
func (k *livenessCheck) at(ctx context.Context, s *Snapshot, e *fleet.Engine, was *connector.PrefillEndpoint) proof {
	at, ok := e.SideChannel(was)
	if !ok || s.Stock == nil {
		return runUnknown
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeouts.SideChannelAnswer())
	defer cancel()
	rec, err := s.Stock.First(ctx, at)
	switch {
	case err == nil && rec.EngineID == was.EngineID:
		k.http = monitor.Refusing{}
		return runLives
	case err == nil:
		return runOver
	case !errors.Is(err, syscall.ECONNREFUSED):
		k.http = monitor.Refusing{}
		return runUnknown
	case k.http.Gone(ctx, e):
		return runOver
	}
	return runUnknown
}
