package admission

import (
	"slices"
	"time"
)

// priorityWorth is what one step of priority is worth: a waiting request goes before requests that came up to that much earlier and
// have a priority of one less. So no request waits for ever.
const priorityWorth = time.Second

// waitlist says which requests of one model are with engines, and which wait in what order. It reads no clock and does no I/O.
// The zero value is ready.
type waitlist struct {
	running int
	waiting int
	levels  []*level // of the requests that wait, the highest priority first
}

// level is the waiting requests of one priority, the oldest first.
type level struct {
	priority    int
	first, last *Waiter
}

// Waiter is one request in a queue.
type Waiter struct {
	priority   int
	since      time.Time   // its arrival
	done       chan Result // with a buffer of one, for the one result
	at         *level      // nil if it does not wait
	prev, next *Waiter
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

// offer takes a request in: at most max are with engines, and at most length wait. If the queue is full, the request may replace the
// last one of the lowest priority, if that is lower than its own. offer returns the replaced request.
func (q *waitlist) offer(e *Waiter, max, length int) (placed, *Waiter) {
	if q.take(max) {
		return placeTaken, nil
	}
	var out *Waiter
	if q.waiting >= length {
		if q.waiting == 0 {
			return placeDenied, nil
		}
		if low := q.levels[len(q.levels)-1]; low.priority < e.priority {
			out = low.last
			q.remove(out)
		} else {
			return placeDenied, nil
		}
	}
	q.push(e)
	return placeWaits, out
}

// take takes a place if one is free and no request waits.
func (q *waitlist) take(max int) bool {
	if q.waiting > 0 || q.running >= max {
		return false
	}
	q.running++
	return true
}

func (q *waitlist) push(e *Waiter) {
	i, found := slices.BinarySearchFunc(q.levels, e.priority, func(l *level, p int) int { return p - l.priority })
	if !found {
		q.levels = slices.Insert(q.levels, i, &level{priority: e.priority})
	}
	l := q.levels[i]
	e.at, e.prev, e.next = l, l.last, nil
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
	q.waiting++
}

// remove takes out a request that waits. It reports false if the request does not wait.
func (q *waitlist) remove(e *Waiter) bool {
	l := e.at
	if l == nil {
		return false
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	e.at, e.prev, e.next = nil, nil, nil
	if l.first == nil {
		q.levels = slices.DeleteFunc(q.levels, func(o *level) bool { return o == l })
	}
	q.waiting--
	return true
}

// next takes out the request that may go to engines now. It returns nil if none may.
func (q *waitlist) next(max int) *Waiter {
	if q.running >= max {
		return nil
	}
	var best *Waiter
	var key time.Time
	for _, l := range q.levels {
		k := l.first.since.Add(-time.Duration(l.priority) * priorityWorth)
		if best == nil || k.Before(key) { // of equal ones the higher priority
			best, key = l.first, k
		}
	}
	if best != nil {
		q.remove(best)
		q.running++
	}
	return best
}

// done gives back the place of a request that was with the engines.
func (q *waitlist) done() { q.running-- }
