package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// PeerDirectory finds the peers of an engine's agents through the gateway.
type PeerDirectory struct {
	Records *client.Directory
	Own     string // name of the engine whose agents ask
}

// Engine implements Directory.
func (d PeerDirectory) Engine(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	recs, err := d.Records.Engine(ctx, inc)
	if errors.Is(err, metadata.ErrStale) {
		err = fmt.Errorf("%w: %w", ErrSuperseded, err)
	}
	return recs, err
}

// Follow keeps a copy of the peers' records until ctx ends, so that the first request between two engines need not wait
// for the gateway.
func (d PeerDirectory) Follow(ctx context.Context, log *slog.Logger) {
	_ = d.Records.Run(ctx, func(engine string) bool { return engine != d.Own }, log) // it ends with ctx only
}
