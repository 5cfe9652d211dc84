package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// peerDirectory finds peers for the plane's agents through the gateway.
type peerDirectory struct {
	directory *metadata.Directory
	own       string // name of the engine whose agents ask
}

// Engine implements kvplane.Directory.
func (d peerDirectory) Engine(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	recs, err := d.directory.Engine(ctx, inc)
	if errors.Is(err, metadata.ErrStale) {
		err = fmt.Errorf("%w: %w", kvplane.ErrSuperseded, err)
	}
	return recs, err
}

// follow keeps a copy of the peers' records until ctx ends, so that the first request between two engines need not wait for the
// gateway.
func (d peerDirectory) follow(ctx context.Context, log *slog.Logger) {
	_ = d.directory.Run(ctx, func(engine string) bool { return engine != d.own }, log) // it ends with ctx only
}
