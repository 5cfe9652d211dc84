package monitor

import (
	"context"
	"errors"
	"syscall"
	"time"

	"pdrouter/router/fleet"
)

// Refusing is since when an engine's HTTP address has refused every connection; zero if it does not.
type Refusing struct{ since time.Time }

// RefusedFor is how long an engine's addresses must have refused connections for its process to count as gone.
const RefusedFor = 500 * time.Millisecond

// Gone looks once more, and reports whether the address has refused connections for long enough. Silence is no proof.
func (k *Refusing) Gone(ctx context.Context, e *fleet.Engine) bool {
	if _, _, err := Get(ctx, e, "/health", 1<<20); !errors.Is(err, syscall.ECONNREFUSED) {
		*k = Refusing{}
		return false
	}
	if k.since.IsZero() {
		k.since = time.Now()
	}
	return time.Since(k.since) >= RefusedFor
}
