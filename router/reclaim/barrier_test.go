package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/background"
)

// TestBarrierAfterPanic has the request of a barrier panic: another is sent, and those that wait are passed.
func TestBarrierAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := background.NewTasks(slog.New(slog.DiscardHandler), errors.New("late"))
		defer tasks.Stop(errors.New("the end"))
		r := &Reclaimer{tasks: tasks}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		passed := r.waitAt(ctx, new(barrier), time.Now(), true, func() bool {
			if n++; n == 1 {
				panic("as told")
			}
			return true
		})
		if !passed || n != 2 {
			t.Errorf("passed %v, with %d requests", passed, n)
		}
	})
}
