package metadata

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Directory looks up the ranks of one run of an engine through a Client. It has the method that the plane's agents
// need.
type Directory struct{ client *Client }

// Directory returns the client as a directory of incarnations.
func (c *Client) Directory() *Directory { return &Directory{client: c} }

// Engine returns the records of all ranks of the incarnation. While they are not all published, or the gateway is not
// reachable, it tries again until ctx ends or the client's timeout is over. It returns ErrStale if the engine has a
// newer generation.
func (d *Directory) Engine(ctx context.Context, inc Incarnation) ([]Record, error) {
	ctx, cancel := context.WithTimeout(ctx, d.client.cfg.Timeout)
	defer cancel()
	pause := d.client.cfg.Retry
	for {
		recs, err := d.try(ctx, inc)
		if err == nil || !transient(err) {
			return recs, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

func (d *Directory) try(ctx context.Context, inc Incarnation) ([]Record, error) {
	recs, err := d.client.Engine(ctx, inc.Engine)
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		switch {
		case r.Generation > inc.Generation:
			return nil, fmt.Errorf("metadata: engine %s: generation is %x; asked for %x: %w", inc.Engine, r.Generation, inc.Generation, ErrStale)
		case r.Generation < inc.Generation:
			return nil, fmt.Errorf("metadata: engine %s: generation is %x; asked for %x: %w", inc.Engine, r.Generation, inc.Generation, ErrNotFound)
		}
	}
	if _, err := complete(recs); err != nil {
		return nil, fmt.Errorf("metadata: engine %s: %w: %w", inc.Engine, err, ErrNotFound)
	}
	return recs, nil
}

// transient reports whether a later try may succeed.
func transient(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status >= 500 || status.Status == http.StatusTooManyRequests
	}
	return !errors.Is(err, ErrStale)
}
