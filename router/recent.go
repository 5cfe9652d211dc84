package router

import "sync"

// recent keeps the summaries of the requests that finished last. It is safe for concurrent use.
type recent struct {
	mu   sync.Mutex
	ring []Summary
	next int // where the next one goes
	full bool
}

func newRecent(n int) *recent { return &recent{ring: make([]Summary, n)} }

func (r *recent) add(s *Summary) {
	r.mu.Lock()
	r.ring[r.next] = *s
	if r.next++; r.next == len(r.ring) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
}

// list returns the summaries for which keep is true, newest first.
func (r *recent) list(keep func(*Summary) bool) []Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.next
	if r.full {
		n = len(r.ring)
	}
	out := make([]Summary, 0, n)
	for i := 1; i <= n; i++ {
		s := &r.ring[(r.next-i+len(r.ring))%len(r.ring)]
		if keep(s) {
			out = append(out, *s)
		}
	}
	return out
}
