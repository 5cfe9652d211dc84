package admission

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

const (
	// priorityWorth is what one step of priority is worth: a waiting request goes before requests that came up to that much earlier and
	// have a priority of one less.
	priorityWorth = time.Second
	// fairTurns: every so many places, one goes to the request that first come, first served would choose. So a request that n others
	// precede in that order has a place after at most fairTurns·(n+1) places, whatever the others have attained.
	fairTurns = 8
	// mostFlows is how many tenants and sessions are remembered. Requests of further sessions are sessions of their own, and those of further
	// tenants are of the tenant without a name.
	mostFlows = 1 << 16
)

// waitlist says which requests of one model are with engines, and which wait in what order. It reads no clock and does no I/O: the caller
// advances age. The zero value is ready, and serves first come, first served.
//
// If it is fair, the next request of a priority is that of the tenant with the least attained service for its weight, and among that tenant's
// sessions of the one with the least; of one session, the oldest. Of two priorities, the one whose next request came earlier goes first,
// priorityWorth being taken off. Every fairTurns-th place goes by arrival and priority alone.
type waitlist struct {
	running int
	waiting int
	levels  []*level // the highest priority first

	unasked bool // all requests are ready, whatever their Ready says
	unbegun int  // what Ready is told
	tokens  int  // likewise

	fair   bool
	age    float64 // the time, in half-lives
	grants uint64  // places given to requests that waited
	turns  uint64  // how often a flow began to wait

	known  map[flowID]*flow // tenants and sessions that are remembered
	all    []*flow          // the same
	cursor int              // where sweep goes on
}

// level is the requests of one priority.
type level struct {
	root flow
	line line // its requests that wait
}

// Waiter is one request in a queue.
type Waiter struct {
	request Request
	done    chan Result // with a buffer of one, for the one result
	at      *level      // nil if it does not wait
	of      *flow       // its session; own if that has no name
	own     flow
	held    *flow // what it is charged to: its session, or its tenant if that has no name
	wait    Wait
	grants  uint64 // that there had been when it came

	prev, next [2]*Waiter // in the two lines
}

// Done has the one result of the wait. Receive it once.
func (w *Waiter) Done() <-chan Result { return w.done }

// placed is what became of a request that was offered.
type placed uint8

const (
	placeTaken  placed = iota // it may go to the engines
	placeWaits                // it stands in the queue
	placeDenied               // the queue is full
)

// offer takes a request in: at most max are with engines, and at most length wait. If the queue is full, the request may replace another one,
// which offer returns.
func (q *waitlist) offer(w *Waiter, max, length int) (placed, *Waiter) {
	if q.take(max) {
		return placeTaken, nil
	}
	if !q.fair {
		w.request.Tenant, w.request.Session, w.request.Weight = "", 0, 0
	}
	var out *Waiter
	if q.waiting >= length {
		if out = q.replaced(&w.request); out == nil {
			return placeDenied, nil
		}
		q.leave(out)
	}
	q.push(w)
	return placeWaits, out
}

// replaced is the request that leaves the full queue for another one; nil if that has to leave. The lowest priority loses a request. Within
// the same priority it is the tenant with the most requests for its weight, and of that tenant the session with the most, if the newcomer's has fewer
// even with it. The newest goes.
func (q *waitlist) replaced(r *Request) *Waiter {
	i := len(q.levels) - 1
	for i >= 0 && q.levels[i].root.waiting == 0 {
		i--
	}
	if i < 0 || q.levels[i].root.id.priority > r.Priority {
		return nil
	}
	tenant := q.levels[i].root.below[byWaiting].list[0]
	session := tenant.below[byWaiting].list[0]
	if tenant.id.priority == r.Priority {
		mine, most := flow{shift: shiftOf(r.Weight)}, tenant
		id := flowID{r.Priority, r.Tenant, 0}
		if tenant.id == id {
			mine.shift, most, id.session = 0, session, r.Session
		}
		if f := q.known[id]; f != nil && f != tenant {
			mine.waiting = f.waiting
		}
		if mine.queued(1) >= most.queued(0) {
			return nil
		}
	}
	return session.line.last
}

// take takes a place if one is free and no request waits.
func (q *waitlist) take(max int) bool {
	q.sweep()
	if q.waiting > 0 || q.running >= max {
		return false
	}
	q.running++
	return true
}

// push adds a request to those that wait.
func (q *waitlist) push(w *Waiter) {
	w.wait, w.grants = q.waitOf(&w.request), q.grants
	f := q.flowOf(&w.request)
	w.held, w.at = f, q.levelOf(w.request.Priority)
	f.pins++
	if f.id.session == 0 {
		f = w.own.init(f.id, f)
	}
	w.of = f
	f.line.push(w)
	w.at.line.push(w)
	q.waiting++
	for ; f != nil; f = f.parent {
		if f.waiting++; f.parent == nil {
			break
		}
		if f.waiting > 1 {
			heap.Fix(&f.parent.below[byWaiting], f.at[byWaiting])
			continue
		}
		if q.turns++; f.until <= q.age {
			f.until = never // what is left of it counts for nothing
		}
		f.turn = q.turns
		heap.Push(&f.parent.below[byService], f)
		heap.Push(&f.parent.below[byWaiting], f)
	}
}

// leave takes out a request that waits, and gets no place. It reports false if the request does not wait.
func (q *waitlist) leave(w *Waiter) bool {
	if w.at == nil {
		return false
	}
	w.wait.Others = q.grants - w.grants
	q.remove(w)
	w.held.pins--
	return true
}

// remove takes out a request that waits.
func (q *waitlist) remove(w *Waiter) {
	w.at.line.remove(w)
	w.of.line.remove(w)
	w.at = nil
	q.waiting--
	for f := w.of; f != nil; f = f.parent {
		if f.waiting--; f.parent == nil {
			break
		}
		if f.waiting > 0 {
			heap.Fix(&f.parent.below[byWaiting], f.at[byWaiting])
			continue
		}
		heap.Remove(&f.parent.below[byService], f.at[byService])
		heap.Remove(&f.parent.below[byWaiting], f.at[byWaiting])
	}
}

// next takes out the request that may go to engines now, charges its prompt, and returns it. It returns nil if none may.
func (q *waitlist) next(max int) *Waiter {
	if q.running >= max || q.waiting == 0 {
		return nil
	}
	q.grants++
	byArrival := !q.fair || q.grants%fairTurns == 0
	var best *Waiter
	var key time.Time
	for _, l := range q.levels {
		if l.root.waiting == 0 {
			continue
		}
		w := l.line.first
		if !byArrival {
			w = l.root.below[byService].list[0].below[byService].list[0].line.first
		}
		k := w.request.Arrived.Add(-time.Duration(l.root.id.priority) * priorityWorth)
		if best == nil || k.Before(key) { // of equal ones the higher priority
			best, key = w, k
		}
	}
	if best = q.firstReady(best); best == nil {
		q.grants--
		return nil
	}
	best.wait.Others, best.wait.ByArrival = q.grants-1-best.grants, byArrival
	q.remove(best)
	q.running++
	if q.fair {
		q.charge(best.held, float64(best.request.Prompt))
	}
	return best
}

// mostAsked bounds how many requests are asked whether they are ready for one place.
const mostAsked = 16

// ready reports whether engines can be given a request now.
func (q *waitlist) ready(r *Request) bool {
	return q.unasked || r.Ready == nil || r.Ready(q.unbegun, q.tokens)
}

// firstReady is w if that is ready or no request is with the engines, else the first that is of those that came first; nil if none is.
func (q *waitlist) firstReady(w *Waiter) *Waiter {
	if q.running == 0 || q.ready(&w.request) {
		return w
	}
	asked := 1
	for _, l := range q.levels {
		for x := l.line.first; x != nil && asked < mostAsked; x = x.next[0] {
			if asked++; x != w && q.ready(&x.request) {
				return x
			}
		}
	}
	return nil
}

// given notes that a request has a place and was given to no engine yet, and begun that this is over.
func (q *waitlist) given(s *Slot) {
	s.unbegun = true
	q.unbegun++
	q.tokens += int(s.prompt)
}

func (q *waitlist) begun(s *Slot) {
	if s.unbegun {
		s.unbegun = false
		q.unbegun--
		q.tokens -= int(s.prompt)
	}
}

// done gives back the place of a request that was with the engines.
func (q *waitlist) done() {
	q.running--
	q.sweep()
}

// charge adds tokens to what a session and its tenant have attained.
func (q *waitlist) charge(f *flow, tokens float64) {
	for ; f.parent != nil; f = f.parent {
		if f.charge(q.age, tokens); f.waiting > 0 {
			heap.Fix(&f.parent.below[byService], f.at[byService])
		}
	}
}

// levelOf returns the level of a priority, which it makes if there is none.
func (q *waitlist) levelOf(priority int) *level {
	i, found := slices.BinarySearchFunc(q.levels, priority, func(l *level, p int) int { return p - l.root.id.priority })
	if !found {
		l := &level{line: line{kind: ofPriority}}
		l.root.init(flowID{priority: priority}, nil)
		q.levels = slices.Insert(q.levels, i, l)
	}
	return q.levels[i]
}

// flowOf returns the session of a request, or its tenant if it has none, and remembers both from now on.
func (q *waitlist) flowOf(r *Request) *flow {
	root := &q.levelOf(r.Priority).root
	tenant := q.remember(flowID{r.Priority, r.Tenant, 0}, root, mostFlows)
	if tenant == nil {
		tenant = q.remember(flowID{priority: r.Priority}, root, math.MaxInt) // there is one of a priority
	}
	if shift := shiftOf(r.Weight); shift != tenant.shift {
		if tenant.shift = shift; tenant.waiting > 0 {
			heap.Fix(&root.below[byService], tenant.at[byService])
			heap.Fix(&root.below[byWaiting], tenant.at[byWaiting])
		}
	}
	if r.Session != 0 {
		if f := q.remember(flowID{r.Priority, tenant.id.tenant, r.Session}, tenant, mostFlows); f != nil {
			return f
		}
	}
	return tenant
}

// shiftOf is the logarithm of a weight. Without a weight it is that of 1.
func shiftOf(weight int) float64 { return math.Log2(float64(max(weight, 1))) }

// remember returns the flow of that name. If there is none it makes one, unless most are remembered: then it returns nil.
func (q *waitlist) remember(id flowID, parent *flow, most int) *flow {
	f := q.known[id]
	if f != nil || len(q.all) >= most {
		return f
	}
	if q.known == nil {
		q.known = make(map[flowID]*flow)
	}
	f = new(flow).init(id, parent)
	parent.pins++
	f.index = len(q.all)
	q.all, q.known[id] = append(q.all, f), f
	return f
}

// sweep looks at two of the flows that are remembered, and forgets those that nothing needs. Each operation that may add a flow or two
// sweeps once. So at most as many are remembered in vain as are in use.
func (q *waitlist) sweep() {
	for range min(2, len(q.all)) {
		q.cursor %= len(q.all)
		f := q.all[q.cursor]
		if f.pins > 0 || f.until > q.age {
			q.cursor++
			continue
		}
		last := len(q.all) - 1
		q.all[f.index], q.all[last].index = q.all[last], f.index
		q.all[last], q.all = nil, q.all[:last]
		delete(q.known, f.id)
		if f.parent.pins--; f.parent.parent == nil && f.parent.pins == 0 {
			q.levels = slices.DeleteFunc(q.levels, func(l *level) bool { return &l.root == f.parent })
		}
		if last == 0 {
			return
		}
	}
}
