package router

import (
	"context"
	"log/slog"

	"pdrouter/internal/background"
	"pdrouter/kvplane"
	"pdrouter/router/fleet"
	"pdrouter/router/reason"
)

// cancelTransfer tells engines that nobody wants a transfer any more.
func cancelTransfer(tasks *background.Tasks, log *slog.Logger, s *snapshot, transfer string, why reason.Reason, engines ...*fleet.Engine) {
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
