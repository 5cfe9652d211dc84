//go:build !linux

package sim

import "time"

// waiter lets one goroutine wait for a time or for another goroutine.
type waiter struct{ woken chan struct{} }

func newWaiter() (*waiter, error) { return &waiter{make(chan struct{}, 1)}, nil }

func (w *waiter) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.woken:
	}
}

func (w *waiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *waiter) close() {}
