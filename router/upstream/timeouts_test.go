package upstream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTimeouts has requests end in time, too late, and with the context that all of them have.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		r := NewTimeouts(ctx)
		first := r.Begin(time.Second)
		time.Sleep(time.Second / 2)
		r.End()
		if second := r.Begin(time.Second); second != first {
			t.Error("a request that ended in time leaves nothing to the next one")
		}
		time.Sleep(999 * time.Millisecond)
		if first.Err() != nil {
			t.Error("canceled before its time")
		}
		<-first.Done()
		r.End()
		if err := first.Cause(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its time was over, and it was canceled with %v", err)
		}
		third := r.Begin(time.Second)
		if third == first || third.Err() != nil {
			t.Error("the next exchange begins with what was canceled")
		}
		cancel(why)
		<-third.Done()
		r.End()
		if err := third.Cause(); !errors.Is(err, why) {
			t.Errorf("all was over, and it was canceled with %v", err)
		}
		if last := r.Begin(time.Second); !errors.Is(last.Cause(), why) {
			t.Error("a request begins though all is over")
		}
		r.End()
		time.Sleep(time.Hour) // a timer that was left would be seen by the race detector
	})
}
