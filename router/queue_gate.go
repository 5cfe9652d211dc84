package router

import (
	"sync"
	"time"

	"pdrouter/router/reason"
)

// capacity is what a queue asks of the model whose requests it orders.
type capacity interface {
	// Places is how many requests may be with engines at once. It is called with the queue locked: it must not block and must not use
	// the queue.
	Places() int
}

// gate is the queue of one model and its counters. It is safe for concurrent use. A reload of the configuration changes its limits
// and nothing else. Call setLimits before anything else.
type gate struct {
	mu       sync.Mutex
	q        queue
	capacity capacity
	length   int    // how many may wait
	waited   uint64 // requests that had to wait
	denied   [reason.Count]uint64
}

// slot is a place with a model's engines. It belongs to one request. The zero value holds no place.
type slot struct{ queue *gate }

// release gives the place back. The next request that waits gets it. A second call does nothing.
func (s *slot) release() {
	if g := s.queue; g != nil {
		s.queue = nil
		g.done()
	}
}

// queueResult is what a request got: a slot, or the reason why it has none.
type queueResult struct {
	slot slot
	why  reason.Reason // None with a slot
}

// setLimits sets what a configuration allows: the places that c has, and length requests that wait. Places that this adds are
// given out by the next update.
func (g *gate) setLimits(c capacity, length int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.capacity, g.length = c, length
}

// tryAcquire takes a place if one is free and no request waits.
func (g *gate) tryAcquire() (slot, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.q.take(g.capacity.Places()) {
		return slot{}, false
	}
	return slot{g}, true
}

// enqueue has a request that arrived at since wait for a place. It returns the waiter, whose Done channel has the result later. The
// waiter is nil if the result is known at once: a place came free, or the queue is full.
func (g *gate) enqueue(priority int, since time.Time) (queueResult, *waiter) {
	w := &waiter{priority: priority, since: since, done: make(chan queueResult, 1)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grantLocked()
	place, out := g.q.offer(w, g.capacity.Places(), g.length)
	if out != nil {
		g.denyLocked(out, reason.QueueFull)
	}
	switch place {
	case placeTaken:
		return queueResult{slot: slot{g}}, nil
	case placeDenied:
		g.denied[reason.QueueFull]++
		return queueResult{why: reason.QueueFull}, nil
	}
	g.waited++
	return queueResult{}, w
}

// drop ends the wait of a request for the reason why. It does nothing if the wait has ended.
func (g *gate) drop(w *waiter, why reason.Reason) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.q.remove(w) {
		g.denyLocked(w, why)
	}
}

// update gives out places that were added: an engine takes requests again, or the configuration allows more of them.
func (g *gate) update() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grantLocked()
}

// done takes a place back and gives it to the next request.
func (g *gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.q.done()
	g.grantLocked()
}

func (g *gate) grantLocked() {
	places := g.capacity.Places()
	for w := g.q.next(places); w != nil; w = g.q.next(places) {
		w.done <- queueResult{slot: slot{g}}
	}
}

func (g *gate) denyLocked(w *waiter, why reason.Reason) {
	g.denied[why]++
	w.done <- queueResult{why: why}
}

// queueStats is the state of a queue, and its counters since the start.
type queueStats struct {
	InFlight int               // with the engines, or on their way to the client
	Places   int               // how many may be
	Waiting  int               // requests in the queue
	Waited   uint64            // requests that had to wait
	Denied   map[string]uint64 // requests that got no place, by reason
}

// deniedFor are the reasons for which a request gets no place.
var deniedFor = [...]reason.Reason{reason.QueueFull, reason.QueueTimeout, reason.ClientLeft, reason.Shutdown}

func (g *gate) stats() queueStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := queueStats{InFlight: g.q.running, Places: g.capacity.Places(), Waiting: g.q.waiting, Waited: g.waited,
		Denied: make(map[string]uint64, len(deniedFor))}
	for _, why := range deniedFor {
		s.Denied[why.String()] = g.denied[why]
	}
	return s
}
