package embed

import "sync"

// bell is a descriptor that is readable while it rings.
type bell struct {
	mu      sync.Mutex
	fd      int
	write   int // where to write; fd itself where one descriptor does for both
	ringing bool
	closed  bool
}

// set rings, or stops ringing.
func (b *bell) set(ring bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || ring == b.ringing {
		return
	}
	b.ringing = ring
	if ring {
		b.ring()
	} else {
		b.quiet()
	}
}

func (b *bell) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	return b.shut()
}
