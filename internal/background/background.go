// Package background runs functions on goroutines beside the one that asks. It owns those goroutines and knows nothing of what they do.
package background

import (
	"context"
	"sync"
	"time"
)

// Pool runs functions on goroutines that it keeps for the next ones. The stack of a new goroutine is small and is copied each time
// that it grows; a kept goroutine has its stack already. The goroutine that became idle last is used first, as its stack is still in
// the processor's cache.
type Pool struct {
	most int

	mu     sync.Mutex
	idle   []chan func() // one per idle goroutine, each with room for one function
	closed bool
}

// NewPool returns a Pool that keeps at most most idle goroutines.
func NewPool(most int) *Pool { return &Pool{most: most} }

// Go runs f, which must not panic, and does not wait for it. There is no bound on how many functions run at once.
func (p *Pool) Go(f func()) {
	p.mu.Lock()
	n := len(p.idle) - 1
	if n < 0 {
		p.mu.Unlock()
		go p.work(f)
		return
	}
	next := p.idle[n]
	p.idle = p.idle[:n]
	p.mu.Unlock()
	next <- f
}

// work runs f and then the functions that Go sends, until the goroutine is not kept.
func (p *Pool) work(f func()) {
	next := make(chan func(), 1)
	for f != nil {
		f()
		if !p.keep(next) {
			return
		}
		f = <-next // nil after Close
	}
}

// keep adds an idle goroutine. It reports false if there are enough, or if the pool is closed.
func (p *Pool) keep(next chan func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) == p.most {
		return false
	}
	p.idle = append(p.idle, next)
	return true
}

// Close ends the idle goroutines, and each of the others after its function. Functions can still be run.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, next := range p.idle {
		close(next)
	}
	p.idle = nil
}

// Sleep blocks for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Notify wakes the reader of a channel with a buffer of one, now or when it reads. It never blocks.
func Notify(reader chan<- struct{}) {
	select {
	case reader <- struct{}{}:
	default:
	}
}
