package kvtransfer

import (
	"context"

	"pdrouter/kvplane/control"
	"pdrouter/kvplane/transfer"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/reason"
)

// Cancel cancels a transfer at its engines, in the background. token is the bearer token for their control routes.
func (t *Transfers) Cancel(cfg *config.Config, token func() (string, error), id string, why reason.Reason, engines ...*fleet.Engine) {
	parsed, err := transfer.ParseID(id)
	if err != nil {
		return
	}
	for _, e := range engines {
		if e == nil || e.ControlURL == "" {
			continue
		}
		t.tasks.Try(cfg.Limits.Background, cfg.Timeouts.Cleanup, func(ctx context.Context) {
			if err := control.CancelTransfer(ctx, e.ControlClient, e.ControlURL, token, parsed, why.String()); err != nil {
				t.log.Debug("cancel", "engine", e.Name, "transfer_id", id, "err", err)
			}
		})
	}
}
