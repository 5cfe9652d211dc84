package monitor

import (
	"context"
	"time"

	"pdrouter/kvplane/control"
	"pdrouter/router/fleet"
)

// follow enters an engine's events into the ledger of transfers until ctx ends.
func (m *Monitor) follow(ctx context.Context, e *fleet.Engine) {
	defer e.EventsOpen.Store(false)
	var token func() (string, error)
	if m.current().Token != nil {
		token = func() (string, error) {
			if token := m.current().Token; token != nil {
				return token()
			}
			return "", nil
		}
	}
	err := control.Watch(ctx, e.ControlClient, e.ControlURL, token, func(ev control.Event) {
		switch ev.Event {
		case control.Open:
			e.EventStreams.Add(1)
			e.EventsOpen.Store(true)
			m.log.Info("event stream open", "engine", e.Name)
		case control.Closed:
			e.EventsOpen.Store(false)
			m.log.Warn("event stream closed; transfers lack events", "engine", e.Name, "why", ev.Reason)
		case control.Gap:
			e.EventStreams.Add(1)
			m.log.Warn("event stream has a gap; transfers lack events", "engine", e.Name)
		default:
			m.transfers.Note(e.Name, ev, time.Now())
		}
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("event stream", "engine", e.Name, "err", err)
	}
}
