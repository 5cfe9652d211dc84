package router

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"pdrouter/router/reason"
)

// scopePriority lets a caller say how urgent a request is, in X-Vllm-Priority or in the body.
const scopePriority = "priority"

// maxPriority bounds a priority, on either side of 0.
const maxPriority = 100

// gate is the queue of one model, with what came of it. It outlives a reload and is safe for concurrent use. Whoever waits does
// so on the goroutine of its own connection.
type gate struct {
	mu     sync.Mutex
	q      queue
	m      *model // of the configuration that holds: it says how many may be with the engines
	waited uint64 // requests that had to wait
	denied [reason.Count]uint64
}

// serves has the gate go by another configuration.
func (g *gate) serves(m *model) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.m = m
}

// take takes a place if one is free and nobody waits.
func (g *gate) take() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.q.take(g.m.places())
}

// offer takes a request in.
func (g *gate) offer(e *waiter) placed {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grantLocked()
	place, out := g.q.offer(e, g.m.places(), g.m.queue)
	if out != nil {
		g.tellLocked(out, reason.QueueFull)
	}
	switch place {
	case placeDenied:
		g.denied[reason.QueueFull]++
	case placeWaits:
		g.waited++
	}
	return place
}

// drop ends the wait of a request, if it still waits.
func (g *gate) drop(e *waiter, why reason.Reason) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.q.remove(e) {
		g.tellLocked(e, why)
	}
}

// done gives back a place, and gives it to who is next.
func (g *gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.q.done()
	g.grantLocked()
}

// update hands out places that were added: an engine takes requests again, or the configuration allows more of them.
func (g *gate) update() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grantLocked()
}

func (g *gate) grantLocked() {
	max := g.m.places()
	for e := g.q.next(max); e != nil; e = g.q.next(max) {
		e.told <- reason.None
	}
}

func (g *gate) tellLocked(e *waiter, why reason.Reason) {
	g.denied[why]++
	e.told <- why
}

// updateQueue hands out places of the engine's model that were added.
func (r *Router) updateQueue(e *engine) {
	if m := r.now().fleet.models[e.model]; m != nil {
		m.gate.update()
	}
}

// bound has what outlives a reload go by this configuration.
func (f *fleet) bound(cfg Config) {
	for _, m := range f.models {
		m.gate.serves(m)
		m.retries.bound(*cfg.Limits.RetryPercent, *cfg.Limits.RetryFloor)
	}
}

// QueueStats is the queue of one model.
type QueueStats struct {
	Model    string            `json:"model"`
	InFlight int               `json:"in_flight"` // with the engines, or on their way to the client
	Places   int               `json:"places"`    // how many may be
	Waiting  int               `json:"waiting"`
	Waited   uint64            `json:"waited"` // requests that had to wait, since the start
	Denied   map[string]uint64 `json:"denied"` // those that got no place, by reason
}

// RetryStats is what came of one model's budget of retries, since the start.
type RetryStats struct {
	Model         string
	Made, Refused uint64 // retries that were begun; requests that failed as there might be no more
}

// pressure tells of every model's queue and retries, by name.
func (f *fleet) pressure() (queues []QueueStats, retries []RetryStats) {
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		m := f.models[name]
		queues = append(queues, m.gate.stats())
		made, refused := m.retries.counts()
		retries = append(retries, RetryStats{Model: name, Made: made, Refused: refused})
	}
	return queues, retries
}

// queueReasons are the reasons for which a request gets no place.
var queueReasons = [...]reason.Reason{reason.QueueFull, reason.QueueTimeout, reason.ClientLeft, reason.Shutdown}

func (g *gate) stats() QueueStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := QueueStats{Model: g.m.name, InFlight: g.q.running, Places: g.m.places(), Waiting: g.q.waiting, Waited: g.waited,
		Denied: make(map[string]uint64, len(queueReasons))}
	for _, why := range queueReasons {
		s.Denied[why.String()] = g.denied[why]
	}
	return s
}

// places is how many of the model's requests may be with engines at once: none while no engine takes requests and one may come back.
// Where none will, requests need not wait: they are told so.
func (m *model) places() int {
	takers, comes := m.takers()
	switch {
	case takers == 0 && comes:
		return 0
	case m.inFlight > 0:
		return m.inFlight
	}
	return max(1, takers) * m.perEngine
}

// enter gives an admitted request a place with the model's engines, for which it may have to wait. header is the client's
// X-Vllm-Priority. What was taken is given back with an error.
func (r *Router) enter(q *admitted, conn net.Conn, header []byte) *httpError {
	if l, ok := q.lease.(*backgroundLease); ok && !r.backgrounds.admit(l, q.s.cfg.Limits.Background) {
		l.Done(0)
		q.lease = nil
		return ofCaller(errTooManyBackground(), q.who, q.m.name)
	}
	g := q.m.gate
	if g.take() {
		q.place = g
		return nil // at the end Serve ends it with all others
	}
	e := &waiter{priority: q.standing(header), since: q.arrived, told: make(chan reason.Reason, 1)}
	why := reason.None
	switch g.offer(e) {
	case placeDenied:
		why = reason.QueueFull
	case placeWaits:
		q.checked = time.Since(q.arrived)
		late := time.AfterFunc(q.s.cfg.Timeouts.Queue, func() { g.drop(e, reason.QueueTimeout) })
		watch, _ := r.gone.Watch(conn, func() { g.drop(e, reason.ClientLeft) })
		select {
		case why = <-e.told:
		case <-r.closing: // also where no configuration has the gate's model any more
			g.drop(e, reason.Shutdown)
			why = <-e.told
		}
		late.Stop()
		watch.Stop()
		q.queued = time.Since(q.arrived)
	}
	if why == reason.None {
		select {
		case <-r.closing: // a place that came free as its request was ended at shutdown
			g.done()
			why = reason.Shutdown
		default:
			q.place = g
			return nil
		}
	}
	if q.lease != nil {
		q.lease.Done(0)
		q.lease = nil
	}
	return ofCaller(errQueue(why, q.m.name), q.who, q.m.name)
}

// standing is how urgent the request is: the more the sooner. Callers with the scope say so themselves, in the engines' way: the
// less the sooner; the head goes before the body.
func (q *admitted) standing(header []byte) int {
	p := q.s.cfg.Priorities[q.who.Tenant]
	if q.b != nil && q.b.urgent {
		if q.b.priority != 0 {
			p = -q.b.priority
		}
		if n, err := strconv.Atoi(string(header)); err == nil {
			p = -n
		}
	}
	return min(max(p, -maxPriority), maxPriority)
}

// leave gives back the request's place.
func (q *admitted) leave() {
	if q.place != nil {
		q.place.done()
		q.place = nil
	}
}

// turnAway ends the wait of all who stand in queues, and of those who come.
func (r *Router) turnAway() { r.close() }

// turnsAway reports whether turnAway was called.
func (r *Router) turnsAway() bool {
	select {
	case <-r.closing:
		return true
	default:
		return false
	}
}

// errQueue answers a request that got no place with the engines.
func errQueue(why reason.Reason, model string) *httpError {
	switch model = clip(model, 256); why {
	case reason.QueueFull:
		return newError(why, "Too many requests wait for the model `%s`.", model)
	case reason.QueueTimeout:
		return newError(why, "The request waited too long for the model `%s`.", model)
	case reason.Shutdown:
		return errDraining()
	}
	return newError(why, "") // the client has left
}

// takers counts the model's decode engines that may be given requests. comes reports that others may come back: they are down, but not as
// nothing listens there.
func (m *model) takers() (n int, comes bool) {
	for _, e := range m.decode {
		switch {
		case e.usable():
			n++
		case !e.draining.Load() && !e.refuses.Load():
			comes = true
		}
	}
	return n, comes
}
