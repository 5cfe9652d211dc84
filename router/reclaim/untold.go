package reclaim

import (
	"context"
	"errors"
	"sync"
	"time"
)

// An engine that could not be told to free what it pins is told again as long as Leaks says that it holds that: until its own time is over, it is another
// run or of no configuration any more, or says that its cache is empty. The message names one request of one run, which is over. An engine that has freed
// its blocks, as a message that seemed lost did come, logs the further one and does nothing.

const (
	firstAgain, longestAgain = time.Second, 30 * time.Second // it doubles
	// mostUntold is of how many requests an engine is told again. What further ones have pinned waits for the engine's own time.
	mostUntold = 1024
)

// untold is what one engine pins and could not be told to free. One goroutine tells it again.
type untold struct {
	mu      sync.Mutex
	pins    []untoldPin
	running bool // the goroutine
}

// untoldPin is what is pinned of one request, and what Leaks has of it.
type untoldPin struct {
	*Pinned
	held   heldBy
	blocks int
}

// tellAgain has the engine be told again. It does not block.
func (r *Reclaimer) tellAgain(p untoldPin) {
	p.params = nil
	of := r.untold.Of(p.d)
	of.mu.Lock()
	defer of.mu.Unlock()
	if len(of.pins) >= mostUntold {
		return
	}
	of.pins = append(of.pins, p)
	if !of.running {
		of.running = true
		r.tasks.Go("pins that an engine was not told of", func() { r.tellAll(r.tasks.Context(), of) })
	}
}

// tellAll tells an engine until nothing is left to be told.
func (r *Reclaimer) tellAll(ctx context.Context, of *untold) {
	for pause, left := firstAgain, true; left; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestAgain)
		r.tasks.Recover("pins that an engine was not told of", func() {
			if r.tellSome(ctx, of) {
				pause = firstAgain
			}
		})
		of.mu.Lock()
		left = len(of.pins) > 0
		of.running = left
		of.mu.Unlock()
	}
}

// tellSome tells an engine until it cannot be told, and reports whether it could be told of all.
func (r *Reclaimer) tellSome(ctx context.Context, of *untold) bool {
	for {
		of.mu.Lock()
		if len(of.pins) == 0 {
			of.mu.Unlock()
			return true
		}
		p := of.pins[0]
		of.pins[0] = untoldPin{} // else what is before the slice keeps its engine
		of.pins = of.pins[1:]
		of.mu.Unlock()
		if !r.Leaks.holds(p.held, time.Now()) {
			continue
		}
		within, cancel := context.WithTimeout(ctx, p.s.Timeouts.Cleanup)
		err := p.notify(within)
		cancel()
		switch {
		case err == nil:
			r.Leaks.remove(p.held, p.blocks)
			r.Leaks.reclaimed("answered", "notify_decode")
		case errors.Is(err, errMoved): // with the run its blocks are gone
			r.Leaks.remove(p.held, p.blocks)
		default:
			of.mu.Lock()
			of.pins = append(of.pins, p) // after the others
			of.mu.Unlock()
			return false
		}
	}
}
