package background

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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

// TestWaitForReserved: what is certain to be run later is waited for from the time that it is.
func TestWaitForReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewTasks(slog.New(slog.DiscardHandler), nil)
		if !r.Reserve(1) || r.Reserve(1) {
			t.Fatal("there is not one place")
		}
		waited, ran := false, false
		go func() { r.Wait(); waited = true }()
		synctest.Wait()
		if waited {
			t.Error("Wait does not count what is reserved")
		}
		r.GoReserved(time.Second, func(context.Context) { ran = true })
		synctest.Wait()
		if !waited || !ran || r.Running() != 0 {
			t.Errorf("waited %v, ran %v, %d running", waited, ran, r.Running())
		}
	})
}

// TestWaitWhileOthersBegin has tasks begin while they are waited for, as when a gateway stops whose engines are looked after to the last. Wait returns at a
// moment in which there is none.
func TestWaitWhileOthersBegin(t *testing.T) {
	r := NewTasks(slog.New(slog.DiscardHandler), nil)
	over := make(chan struct{})
	var waiters sync.WaitGroup
	for range 2 {
		waiters.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					r.Wait()
				}
			}
		})
	}
	var ended atomic.Int64
	for range 10000 {
		r.Add(1)
		r.Go("a test", func() { ended.Add(1) })
		r.Done()
	}
	r.Wait()
	if n := ended.Load(); n != 10000 {
		t.Errorf("%d tasks have ended before Wait has; want all 10000", n)
	}
	close(over)
	waiters.Wait()
}
