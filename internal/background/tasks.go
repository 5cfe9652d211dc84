package background

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Tasks are goroutines that may outlive what has started them, until Stop. A panic ends one of them, is logged and counted. It is no
// sync.WaitGroup, as others may begin while they are waited for: that panics there.
type Tasks struct {
	count   atomic.Int64  // of what Wait waits for
	none    chan struct{} // has room for one: there has been nothing to wait for
	log     *slog.Logger
	late    error
	ctx     context.Context
	stop    context.CancelCauseFunc
	running atomic.Int64
	panics  atomic.Uint64
}

// NewTasks returns Tasks that log panics. late is the cause with which the context of a task ends whose time is over.
func NewTasks(log *slog.Logger, late error) *Tasks {
	t := &Tasks{none: make(chan struct{}, 1), log: log, late: late}
	t.ctx, t.stop = context.WithCancelCause(context.Background())
	return t
}

// Context ends with Stop.
func (t *Tasks) Context() context.Context { return t.ctx }

// Stop ends the context of all tasks with this cause, and no more are begun by Try.
func (t *Tasks) Stop(cause error) { t.stop(cause) }

// Running returns how many tasks of Try there are.
func (t *Tasks) Running() int { return int(t.running.Load()) }

// Panics returns how many panics were recovered.
func (t *Tasks) Panics() uint64 { return t.panics.Load() }

// Add has Wait wait for what runs elsewhere, until as many calls of Done.
func (t *Tasks) Add(n int) { t.count.Add(int64(n)) }

// Done notes the end of what was added.
func (t *Tasks) Done() {
	if t.count.Add(-1) == 0 {
		Notify(t.none)
	}
}

// Wait waits until there are no tasks. It does not wait for what begins afterwards.
func (t *Tasks) Wait() {
	for t.count.Load() > 0 {
		<-t.none
	}
	Notify(t.none) // another one may wait
}

// Go runs f on a goroutine. what names it in the log if it panics.
func (t *Tasks) Go(what string, f func()) {
	t.Add(1)
	go func() {
		defer t.Done()
		t.Recover(what, f)
	}()
}

// Try runs f on a goroutine, with a context that ends after limit. It reports false if there are most tasks of Try already, or after Stop.
func (t *Tasks) Try(most int, limit time.Duration, f func(context.Context)) bool {
	if !t.Reserve(most) {
		return false
	}
	t.GoReserved(limit, f)
	return true
}

// Reserve is the first half of Try, for what is certain to be run later. It is waited for from now on.
func (t *Tasks) Reserve(most int) bool {
	if t.running.Add(1) > int64(most) || t.ctx.Err() != nil {
		t.running.Add(-1)
		return false
	}
	t.Add(1)
	return true
}

// GoReserved is the second half of Try. It must follow a Reserve that has reported true.
func (t *Tasks) GoReserved(limit time.Duration, f func(context.Context)) {
	go func() {
		defer t.Done()
		defer t.running.Add(-1)
		ctx, cancel := context.WithTimeoutCause(t.ctx, limit, t.late)
		defer cancel()
		t.Recover("a leg that runs on", func() { f(ctx) })
	}()
}

// Recover runs f, and recovers if it panics. It reports whether f came to its end.
func (t *Tasks) Recover(what string, f func()) (whole bool) {
	defer func() {
		if v := recover(); v != nil {
			t.panics.Add(1)
			t.log.Error("panic in the background", "in", what, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

// afterPanic is the pause before what has panicked is begun again.
const afterPanic = time.Second

// Keep runs f, which ends with ctx, and begins it again if it panics.
func (t *Tasks) Keep(ctx context.Context, what string, f func()) {
	for !t.Recover(what, f) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(afterPanic):
		}
	}
}
