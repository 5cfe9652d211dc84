package fleet

import (
	"testing"
	"time"
)

// TestSilenceCountsOnce: connections that were waited for at the same time are one failure, refused ones one each.
func TestSilenceCountsOnce(t *testing.T) {
	e := &Engine{}
	e.failureLimit.Store(3)
	at, wait := time.Now(), 2*time.Second
	for i, c := range []struct {
		after time.Duration
		count int32
	}{{0, 1}, {0, 1}, {time.Millisecond, 1}, {wait - 1, 1}, {wait, 2}, {wait + 1, 2}, {2 * wait, 3}} {
		if down := e.Silent(at.Add(c.after), wait); e.Failures.Load() != c.count || down != (c.count == 3) {
			t.Errorf("%d: %d failures, down %t; want %d", i, e.Failures.Load(), down, c.count)
		}
	}
	if e.Missed(); e.Failures.Load() != 4 {
		t.Errorf("%d failures behind a refused connection; want 4", e.Failures.Load())
	}
}
