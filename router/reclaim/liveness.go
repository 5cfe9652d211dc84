package reclaim

import (
	"context"
	"errors"
	"syscall"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/monitor"
)

// diesNow reports whether the run of decode is over, after a check or two.
func diesNow(ctx context.Context, m *Job) bool {
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
		select {
		case <-ctx.Done():
			return false
		case <-time.After(monitor.RefusedFor):
		}
	}
	return false
}

// livenessCheck finds out whether a run is over; it may be repeated.
type livenessCheck struct{ http monitor.Refusing }

// at finds out whether the run with these coordinates is over: another one answers in its place, or both its addresses
// refuse connections, twice. Silence is no proof.
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
