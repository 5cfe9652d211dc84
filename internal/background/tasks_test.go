package background

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
)

// TestFault68PanicInTheBackground has what runs beside requests panic: it is counted and begun anew, and nothing ends.
func TestFault68PanicInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewTasks(slog.New(slog.DiscardHandler), nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		begun := 0
		r.Keep(ctx, "a test", func() {
			if begun++; begun < 3 {
				panic("a fault")
			}
		})
		if begun != 3 || r.Panics() != 2 {
			t.Errorf("begun %d times, %d panics; want 3 and 2", begun, r.Panics())
		}
		stop()
		r.Keep(ctx, "a test", func() { panic("a fault behind the end") })
	})
}
