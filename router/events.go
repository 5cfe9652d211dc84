package router

import (
	"context"
	"time"

	"pdrouter/kvplane"
)

// follow enters an engine's events into the ledger of transfers until ctx ends.
func (m *monitor) follow(ctx context.Context, e *engine) {
	defer e.followed.Store(false)
	err := kvplane.Watch(ctx, e.client, e.control, controlToken(m.current), func(ev kvplane.TransferEvent) {
		switch ev.Event {
		case "open":
			e.streams.Add(1)
			e.followed.Store(true)
			m.log.Info("event stream is open", "engine", e.name)
		case "closed":
			e.followed.Store(false)
			m.log.Warn("no event stream; books lack events until there is one", "engine", e.name, "why", ev.Reason)
		case "gap":
			e.streams.Add(1)
			m.log.Warn("event stream was too fast; books lack events", "engine", e.name)
		default:
			m.transfers.Note(e.name, ev, time.Now())
		}
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("event stream", "engine", e.name, "err", err)
	}
}

// controlToken returns where the token for the engines' control routes comes from, nil if none is sent.
func controlToken(current func() *setup) func() (string, error) {
	if current().parts.Token == nil {
		return nil
	}
	return func() (string, error) {
		if token := current().parts.Token; token != nil {
			return token()
		}
		return "", nil
	}
}
