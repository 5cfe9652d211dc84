package router

import (
	"context"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/kvplane"
	"pdrouter/router/fleet"
	"pdrouter/router/reason"
)

// follow enters an engine's events into the ledger of transfers until ctx ends.
func (m *monitor) follow(ctx context.Context, e *fleet.Engine) {
	defer e.EventsOpen.Store(false)
	err := kvplane.Watch(ctx, e.ControlClient, e.ControlURL, controlToken(m.current), func(ev kvplane.TransferEvent) {
		switch ev.Event {
		case "open":
			e.EventStreams.Add(1)
			e.EventsOpen.Store(true)
			m.log.Info("event stream is open", "engine", e.Name)
		case "closed":
			e.EventsOpen.Store(false)
			m.log.Warn("no event stream; books lack events until there is one", "engine", e.Name, "why", ev.Reason)
		case "gap":
			e.EventStreams.Add(1)
			m.log.Warn("event stream was too fast; books lack events", "engine", e.Name)
		default:
			m.transfers.Note(e.Name, ev, time.Now())
		}
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("event stream", "engine", e.Name, "err", err)
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

// cancelTransfer tells engines that nobody wants a transfer any more.
func cancelTransfer(tasks *background.Tasks, log *slog.Logger, s *setup, transfer string, why reason.Reason, engines ...*fleet.Engine) {
	id, err := kvplane.ParseTransferID(transfer)
	if err != nil {
		return
	}
	for _, e := range engines {
		if e == nil || e.ControlURL == "" {
			continue
		}
		tasks.Try(s.cfg.Limits.Background, s.cfg.Timeouts.Ending, func(ctx context.Context) {
			if err := kvplane.CancelTransfer(ctx, e.ControlClient, e.ControlURL, s.parts.Token, id, why.String()); err != nil {
				log.Debug("cancel", "engine", e.Name, "transfer_id", transfer, "err", err)
			}
		})
	}
}
