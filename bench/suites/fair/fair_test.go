package fair

import (
	"testing"
	"time"
)

// TestShortSessions has the figures of one seed, and the same ones again.
func TestShortSessions(t *testing.T) {
	c := cases[1]
	of := func(fair bool) outcome {
		o, err := run(c, fair, time.Minute, 7)
		if err != nil || o.done < 200 {
			t.Fatalf("%d turns, %v; want at least 200", o.done, err)
		}
		return o
	}
	got, beside := of(true), of(false)
	t.Logf("%s, seed 7: p99 TTFT of short sessions %v, fifo %v; %.0f tokens/s, fifo %.0f", c.name, got.short.P99, beside.short.P99, got.tokens, beside.tokens)
	if 5*got.short.P99 > beside.short.P99 || got.tokens < .98*beside.tokens {
		t.Errorf("want a fifth of the p99 of fifo, and .98 times its throughput")
	}
	if again := of(true); again != got {
		t.Errorf("the same seed came to %+v, then to %+v", got, again)
	}
}
