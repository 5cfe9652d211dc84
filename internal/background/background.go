// Package background runs functions on goroutines beside the one that asks. It owns those goroutines and knows nothing of what they do.
package background

import (
	"sync"
	"sync/atomic"
)

// Pool runs functions on goroutines that it keeps for the next ones. The stack of a new goroutine is small and is copied each time
// that it grows; a kept goroutine has its stack already.
type Pool struct {
	jobs   chan func()
	closed chan struct{}
	idle   atomic.Int64
	most   int64
	once   sync.Once
}

// NewPool returns a Pool that keeps at most most idle goroutines.
func NewPool(most int) *Pool {
	return &Pool{jobs: make(chan func()), closed: make(chan struct{}), most: int64(most)}
}

// Go runs f, which must not panic, and does not wait for it. There is no bound on how many functions run at once.
func (p *Pool) Go(f func()) {
	select {
	case p.jobs <- f:
	default:
		go p.work(f)
	}
}

func (p *Pool) work(f func()) {
	for f != nil {
		f()
		f = p.next()
	}
}

// next waits for another function. It returns nil if the goroutine is to end.
func (p *Pool) next() func() {
	defer p.idle.Add(-1)
	if p.idle.Add(1) > p.most {
		return nil
	}
	select {
	case f := <-p.jobs:
		return f
	case <-p.closed:
		return nil
	}
}

// Close ends the idle goroutines, and each of the others after its function. Functions can still be run.
func (p *Pool) Close() { p.once.Do(func() { close(p.closed) }) }
