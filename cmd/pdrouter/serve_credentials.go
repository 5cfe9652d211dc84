package main

import (
	"context"
	"time"
)

// reloadEvery bounds how long a withdrawn key is still accepted.
const reloadEvery = 10 * time.Second

// reloadCredentials reads keys and API keys again now and then, so that they can be rotated under a running gateway.
// A file that cannot be used leaves its keys as they were.
func (g *gateway) reloadCredentials(ctx context.Context) error {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := g.credentials.Reload(); err != nil {
				g.log.Error("credentials: keeping what was read before", "err", err)
			}
		}
	}
}
