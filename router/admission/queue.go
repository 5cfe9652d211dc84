// Package admission decides when a request may go to a model's engines, and whether it may be tried again.
//
// It owns the queue in front of a model (Queue) and the model's retry budget (RetryBudget). Both outlive a reload of the configuration.
// It does not know engines, callers or connections. The caller says how many places a model has, when a wait ends, and what time it
// is. Package fleet has one of each per model; the edge enters requests, the exchange asks the budget.
package admission

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/router/reason"
)

// Capacity is what a queue asks of the model whose requests it orders.
type Capacity interface {
	// Places is how many requests may be with engines at once, while so many are and so many wait. It is called with the queue locked: it must not
	// block and must not use the queue.
	Places(running, waiting int) int
}

// Queue is the queue of one model and its counters. It is safe for concurrent use. A reload of the configuration changes its limits and its order
// and nothing else. Call SetLimits before anything else; until SetOrder is called the order is first come, first served.
//
// It reads no clock. A time that is earlier than that of the call before counts as the same.
type Queue struct {
	counts atomic.Int64 // until when service is counted, in nanoseconds since 1970

	mu       sync.Mutex
	list     waitlist
	drain    drain
	at       time.Time // of the last call
	halfLife time.Duration
	capacity Capacity
	length   int    // how many may wait
	waited   uint64 // requests that had to wait
	denied   [reason.Count]uint64
}

// Request is what the queue knows of a request.
type Request struct {
	Priority int       // a higher one goes first
	Arrived  time.Time // a step of the priority is worth a second of it
	Tenant   string    // under whom the caller's use is counted; "" for callers without a name, together
	Weight   int       // of the tenant: its share of the service; 0 is 1
	Session  uint64    // 0: it is a session of its own
	Prompt   int       // tokens, as estimated
	// Ready says whether engines can be given the request now; nil: they always can. unbegun are requests with a Ready that have places and were given
	// to no engine yet, and tokens those of their prompts: no engine is known to have them. It is called with the queue locked, as Places.
	Ready func(unbegun, tokens int) bool
}

// Used is what the engines have done for a request.
type Used struct {
	Computed int  // tokens of the prompt that were not found in a cache
	Output   int  // tokens of the answer
	Unknown  bool // then the estimate of the prompt stays
}

// Slot is a place with a model's engines. It belongs to one request. The zero value holds no place.
type Slot struct {
	queue   *Queue
	flow    *flow   // what it is charged to; nil if its service is not counted
	age     float64 // when
	prompt  int32   // tokens of it, which were charged for it; each request has a Slot, so it is small
	asked   bool    // it has a Ready
	unbegun bool    // it counts as unbegun; the queue's lock guards it
}

// Begun notes that the request was given to engines, or is to wait for something else: it is not unbegun any more. A second call does nothing, also one
// at the same time.
func (s *Slot) Begun() {
	if q := s.queue; q != nil && s.asked {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.list.begun(s)
	}
}

// Release gives the place back. The next request that waits gets it. A second call does nothing.
func (s *Slot) Release(used Used, now time.Time) {
	if q := s.queue; q != nil {
		s.queue = nil
		q.done(s, used, now)
	}
}

// Result is what a request got: a slot, or the reason why it has none.
type Result struct {
	Slot  Slot
	Why   reason.Reason // None with a slot
	Wait  Wait          // why, if it waited or was refused
	Drain time.Duration // without a slot: how long the queue takes to give a place to all that wait now and one more; 0 if unknown
}

// SetLimits sets what a configuration allows: the places that c has, and length requests that wait. Places that this adds are
// given out by the next Update.
func (q *Queue) SetLimits(c Capacity, length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.capacity, q.length = c, length
}

// SetOrder sets how the next request is chosen among those of one priority: by attained service if it is fair, else by arrival. Attained service
// halves in halfLife, which is more than 0. What was attained before is kept.
func (q *Queue) SetOrder(fair bool, halfLife time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.halfLife, q.list.fair = halfLife, fair
	if !fair {
		q.counts.Store(0)
	}
}

// SetReady says whether a request waits until its Ready allows it. Until it is called, it does. A configuration may end that for requests that wait
// already: they get places at the next Update.
func (q *Queue) SetReady(asked bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list.unasked = !asked
}

// Counts reports whether service is counted: requests wait, or have waited within the last half-life. What is served while no request has to
// wait takes nothing from others. Only then it matters which session a request is of.
func (q *Queue) Counts(now time.Time) bool { return now.UnixNano() < q.counts.Load() }

// TryAcquire takes a place if one is free and no request waits.
func (q *Queue) TryAcquire(r Request, now time.Time) (Slot, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLocked(now)
	if q.list.waiting > 0 || !q.readyLocked(&r) || !q.list.take(q.placesLocked()) {
		return Slot{}, false
	}
	var f *flow
	if q.Counts(now) {
		f = q.list.flowOf(&r)
		f.pins++
		q.list.charge(f, float64(r.Prompt))
	}
	return q.slotLocked(&r, f), true
}

// Enqueue adds a request to the queue. Receive the result from the waiter. If the waiter is nil, the result is known already: a place came free,
// or the queue is full.
func (q *Queue) Enqueue(r Request, now time.Time) (Result, *Waiter) {
	w := &Waiter{request: r, done: make(chan Result, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLocked(now)
	if q.list.waiting >= q.length {
		q.grantLocked() // it may make room; else the request is among those that are asked below
	}
	if q.list.fair {
		q.counts.Store(now.Add(q.halfLife).UnixNano())
	}
	places := q.placesLocked()
	if q.list.waiting == 0 && !q.readyLocked(&w.request) {
		places = 0
	}
	place, out := q.list.offer(w, places, q.length)
	if out != nil {
		q.denyLocked(out, reason.QueueFull)
	}
	switch place {
	case placeTaken:
		return Result{Slot: q.slotLocked(&w.request, nil)}, nil
	case placeDenied:
		q.denied[reason.QueueFull]++
		return q.refusedLocked(reason.QueueFull, q.list.waitOf(&w.request)), nil
	}
	q.waited++
	q.grantLocked() // places may depend on whether requests wait
	return Result{}, w
}

// Drop ends the wait of a request for the reason why. It does nothing if the wait has ended.
func (q *Queue) Drop(w *Waiter, why reason.Reason, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLocked(now)
	if q.list.leave(w) {
		q.denyLocked(w, why)
	}
}

// Update gives out places that were added: an engine takes requests again, or the configuration allows more of them.
func (q *Queue) Update() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.grantLocked()
}

// done takes a place back, charges what its request has used, and gives the place to the next request.
func (q *Queue) done(s *Slot, used Used, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advanceLocked(now)
	if s.flow != nil {
		s.flow.pins--
		if q.list.fair && !used.Unknown { // the prompt was computed when it was charged
			q.list.charge(s.flow, float64(used.Computed-int(s.prompt))*math.Exp2(s.age-q.list.age)+outputWeight*float64(used.Output))
		}
	}
	q.list.begun(s)
	q.list.done()
	q.drain.done()
	q.grantLocked()
}

// advanceLocked has time pass.
func (q *Queue) advanceLocked(now time.Time) {
	dt := now.Sub(q.at)
	if q.at.IsZero() {
		dt = 0
	} else if dt <= 0 {
		return
	}
	q.at = now
	q.drain.pass(dt, q.list.running)
	if q.halfLife > 0 {
		q.list.age += float64(dt) / float64(q.halfLife)
	}
}

// readyLocked reports whether engines can be given a request now: those of an idle model always can.
func (q *Queue) readyLocked(r *Request) bool { return q.list.running == 0 || q.list.ready(r) }

func (q *Queue) placesLocked() int { return q.capacity.Places(q.list.running, q.list.waiting) }

func (q *Queue) grantLocked() {
	places := q.placesLocked()
	for w := q.list.next(places); w != nil; w = q.list.next(places) {
		w.done <- Result{Slot: q.slotLocked(&w.request, w.held), Wait: w.wait}
	}
}

// slotLocked is the place of a request that has got one, and is charged to f.
func (q *Queue) slotLocked(r *Request, f *flow) Slot {
	s := Slot{queue: q, flow: f, prompt: int32(min(r.Prompt, math.MaxInt32)), age: q.list.age, asked: r.Ready != nil}
	if s.asked {
		q.list.given(&s)
	}
	return s
}

func (q *Queue) denyLocked(w *Waiter, why reason.Reason) {
	q.denied[why]++
	w.done <- q.refusedLocked(why, w.wait)
}

func (q *Queue) refusedLocked(why reason.Reason, w Wait) Result {
	return Result{Why: why, Wait: w, Drain: q.drain.of(q.list.waiting+1, q.placesLocked())}
}

// Stats is the state of a queue, and its counters since the start.
type Stats struct {
	InFlight int               // with the engines; of a stream, also on its way to the client
	Unbegun  int               // of these, those that Ready is told of
	Places   int               // how many may be
	Waiting  int               // requests in the queue
	Tenants  int               // that have requests in the queue, in each priority; 1 at most if the order is first come, first served
	Largest  int               // requests in the queue of the tenant with the most
	Drain    time.Duration     // what RetryAfter is made of; 0 if unknown
	Waited   uint64            // requests that had to wait
	Denied   map[string]uint64 // requests that got no place, by reason
}

// deniedFor are the reasons for which a request gets no place.
var deniedFor = [...]reason.Reason{reason.QueueFull, reason.QueueTimeout, reason.Objective, reason.ClientLeft, reason.Shutdown}

// Stats returns the state of the queue.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Stats{InFlight: q.list.running, Unbegun: q.list.unbegun, Places: q.placesLocked(), Waiting: q.list.waiting, Waited: q.waited,
		Denied: make(map[string]uint64, len(deniedFor))}
	s.Drain = q.drain.of(q.list.waiting+1, s.Places)
	for _, l := range q.list.levels {
		for _, t := range l.root.below[byService].list {
			s.Tenants++
			s.Largest = max(s.Largest, t.waiting)
		}
	}
	for _, why := range deniedFor {
		s.Denied[why.String()] = q.denied[why]
	}
	return s
}
