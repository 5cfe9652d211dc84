package router

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTerm has exchanges end in time, too late, and with the context that all of them have.
func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		r := newTerm(ctx)
		first := r.begin(time.Second)
		time.Sleep(time.Second / 2)
		r.end()
		if second := r.begin(time.Second); second != first {
			t.Error("an exchange that ended in time leaves nothing to the next one")
		}
		time.Sleep(999 * time.Millisecond)
		if first.Err() != nil {
			t.Error("cut before its time")
		}
		<-first.Done()
		r.end()
		if err := first.why(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its time was over, and it was cut for %v", err)
		}
		third := r.begin(time.Second)
		if third == first || third.Err() != nil {
			t.Error("the next exchange begins with what was cut")
		}
		cancel(why)
		<-third.Done()
		r.end()
		if err := third.why(); !errors.Is(err, why) {
			t.Errorf("all was over, and it was cut for %v", err)
		}
		if last := r.begin(time.Second); !errors.Is(last.why(), why) {
			t.Error("an exchange begins though all is over")
		}
		r.end()
		time.Sleep(time.Hour) // a timer that was left would be seen by the race detector
	})
}
