package exchange

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestBackoff grows, stays within its bounds, and is not the same for everybody.
func TestBackoff(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := 1; n < 80; n++ {
		whole := min(backoffFirst<<min(n-1, 20), backoffMost)
		seen := map[time.Duration]bool{}
		for range 50 {
			d := backoff(n, rng.Uint64())
			if d < whole/2 || d > whole {
				t.Fatalf("wait %d is %s; want %s to %s", n, d, whole/2, whole)
			}
			seen[d] = true
		}
		if len(seen) < 10 {
			t.Errorf("wait %d: %d different of 50", n, len(seen))
		}
	}
}
