// Package admission decides when a request may go to a model's engines, and whether it may be tried again.
//
// It owns the queue in front of a model (Queue) and the model's retry budget (RetryBudget). Both outlive a reload of the configuration.
// It does not know engines, callers or connections. The caller says how many places a model has, when a wait ends, and what time it
// is. Package fleet has one of each per model; the edge enters requests, the exchange asks the budget.
package admission

import (
	"sync"
	"time"

	"pdrouter/router/reason"
)

// Capacity is what a queue asks of the model whose requests it orders.
type Capacity interface {
	// Places is how many requests may be with engines at once. It is called with the queue locked: it must not block and must not use
	// the queue.
	Places() int
}

// Queue is the queue of one model and its counters. It is safe for concurrent use. A reload of the configuration changes its limits
// and nothing else. Call SetLimits before anything else.
type Queue struct {
	mu       sync.Mutex
	list     waitlist
	capacity Capacity
	length   int    // how many may wait
	waited   uint64 // requests that had to wait
	denied   [reason.Count]uint64
}

// Slot is a place with a model's engines. It belongs to one request. The zero value holds no place.
type Slot struct{ queue *Queue }

// Release gives the place back. The next request that waits gets it. A second call does nothing.
func (s *Slot) Release() {
	if q := s.queue; q != nil {
		s.queue = nil
		q.done()
	}
}

// Result is what a request got: a slot, or the reason why it has none.
type Result struct {
	Slot Slot
	Why  reason.Reason // None with a slot
}

// SetLimits sets what a configuration allows: the places that c has, and length requests that wait. Places that this adds are
// given out by the next Update.
func (q *Queue) SetLimits(c Capacity, length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.capacity, q.length = c, length
}

// TryAcquire takes a place if one is free and no request waits.
func (q *Queue) TryAcquire() (Slot, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.list.take(q.capacity.Places()) {
		return Slot{}, false
	}
	return Slot{q}, true
}

// Enqueue adds a request that arrived at since to the queue. Receive the result from the waiter. If the waiter is nil, the result is known
// already: a place came free, or the queue is full.
func (q *Queue) Enqueue(priority int, since time.Time) (Result, *Waiter) {
	w := &Waiter{priority: priority, since: since, done: make(chan Result, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.grantLocked()
	place, out := q.list.offer(w, q.capacity.Places(), q.length)
	if out != nil {
		q.denyLocked(out, reason.QueueFull)
	}
	switch place {
	case placeTaken:
		return Result{Slot: Slot{q}}, nil
	case placeDenied:
		q.denied[reason.QueueFull]++
		return Result{Why: reason.QueueFull}, nil
	}
	q.waited++
	return Result{}, w
}

// Drop ends the wait of a request for the reason why. It does nothing if the wait has ended.
func (q *Queue) Drop(w *Waiter, why reason.Reason) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list.remove(w) {
		q.denyLocked(w, why)
	}
}

// Update gives out places that were added: an engine takes requests again, or the configuration allows more of them.
func (q *Queue) Update() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.grantLocked()
}

// done takes a place back and gives it to the next request.
func (q *Queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list.done()
	q.grantLocked()
}

func (q *Queue) grantLocked() {
	places := q.capacity.Places()
	for w := q.list.next(places); w != nil; w = q.list.next(places) {
		w.done <- Result{Slot: Slot{q}}
	}
}

func (q *Queue) denyLocked(w *Waiter, why reason.Reason) {
	q.denied[why]++
	w.done <- Result{Why: why}
}

// Stats is the state of a queue, and its counters since the start.
type Stats struct {
	InFlight int               // with the engines; of a stream, also on its way to the client
	Places   int               // how many may be
	Waiting  int               // requests in the queue
	Waited   uint64            // requests that had to wait
	Denied   map[string]uint64 // requests that got no place, by reason
}

// deniedFor are the reasons for which a request gets no place.
var deniedFor = [...]reason.Reason{reason.QueueFull, reason.QueueTimeout, reason.ClientLeft, reason.Shutdown}

// Stats returns the state of the queue.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Stats{InFlight: q.list.running, Places: q.capacity.Places(), Waiting: q.list.waiting, Waited: q.waited,
		Denied: make(map[string]uint64, len(deniedFor))}
	for _, why := range deniedFor {
		s.Denied[why.String()] = q.denied[why]
	}
	return s
}
