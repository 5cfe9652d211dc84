package router

import (
	"slices"
	"time"
)

// priorityWorth is what one step of priority is worth: a waiting request goes before those that came up to so much earlier
// with a priority of one less. So nobody is passed for ever.
const priorityWorth = time.Second

// queue says which requests of one model are with engines, and which wait in what order. It reads no clock and does no I/O.
// The zero value is ready.
type queue struct {
	running int
	waiting int
	levels  []*level // those at which somebody waits, the highest priority first
}

// level is who waits with one priority, the longest first.
type level struct {
	priority    int
	first, last *waiter
}

// waiter is one request in a queue.
type waiter struct {
	priority   int
	since      time.Time        // its arrival
	done       chan queueResult // has room for the one result
	at         *level           // nil if it does not wait
	prev, next *waiter
}

// placed is what became of a request that was offered.
type placed uint8

const (
	placeTaken  placed = iota // it may go to the engines
	placeWaits                // it stands in the queue
	placeDenied               // the queue is full
)

// offer takes a request in, at most max with the engines and length waiting. Where the queue is full it may drive out the last
// of those whose priority is less than its own; that one is returned.
func (q *queue) offer(e *waiter, max, length int) (placed, *waiter) {
	if q.take(max) {
		return placeTaken, nil
	}
	var out *waiter
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

// take takes a place if one is free and nobody waits.
func (q *queue) take(max int) bool {
	if q.waiting > 0 || q.running >= max {
		return false
	}
	q.running++
	return true
}

func (q *queue) push(e *waiter) {
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

// remove takes out a request that waits. It reports false if it does not.
func (q *queue) remove(e *waiter) bool {
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

// next takes out the request that may go to the engines now, nil if none may.
func (q *queue) next(max int) *waiter {
	if q.running >= max {
		return nil
	}
	var best *waiter
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
func (q *queue) done() { q.running-- }
