package router

import (
	"context"
	"errors"
	"syscall"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/monitor"
)

// shut is since when an engine's HTTP address has refused every connection; zero if it does not.
type shut struct{ since time.Time }

// refusedFor is how long an engine's addresses must have refused connections for its process to count as gone.
const refusedFor = 500 * time.Millisecond

// gone looks once more, and reports whether the address has refused connections for long enough. Silence is no proof.
func (k *shut) gone(ctx context.Context, e *fleet.Engine) bool {
	if _, _, err := monitor.Get(ctx, e, "/health", 1<<20); !errors.Is(err, syscall.ECONNREFUSED) {
		*k = shut{}
		return false
	}
	if k.since.IsZero() {
		k.since = time.Now()
	}
	return time.Since(k.since) >= refusedFor
}
