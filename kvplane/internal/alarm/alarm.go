// Package alarm says what is due next. It reads no clock and starts nothing: an owner asks it when to wake, and takes
// from it what is due. It owns the order of the due times and nothing else.
package alarm

import (
	"cmp"
	"slices"
	"time"
)

// Waiter is something that waits for a time of its own choosing.
type Waiter interface {
	Due() time.Duration // when; 0 is never
}

// Timers is a heap of waiters. An entry counts only while it agrees with its waiter's due time, so a waiter that chooses
// another time leaves a stale entry and need not be found. Stale entries are dropped when they are the earliest, and all of them when they may
// be more than half: what an entry refers to does not stay in memory until its time. Equal times come in the order in which they were set. The
// zero Timers is empty.
type Timers struct {
	heap []timer
	n    uint64
	kept int // entries after the last sweep
}

type timer struct {
	at  time.Duration
	n   uint64
	who Waiter
}

func (a timer) before(b timer) bool { return a.at < b.at || a.at == b.at && a.n < b.n }

// Set adds the waiter's due time.
func (t *Timers) Set(who Waiter) {
	if who.Due() == 0 {
		return
	}
	if len(t.heap) > 2*t.kept+64 {
		t.sweep()
	}
	t.n++
	t.heap = append(t.heap, timer{at: who.Due(), n: t.n, who: who})
	for i := len(t.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !t.heap[i].before(t.heap[up]) {
			break
		}
		t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
		i = up
	}
}

// Next returns the earliest due time, 0 if there is none.
func (t *Timers) Next() time.Duration {
	for len(t.heap) > 0 {
		if first := t.heap[0]; first.who.Due() == first.at {
			return first.at
		}
		t.drop()
	}
	return 0
}

// Pop returns a waiter that is due, nil if there is none.
func (t *Timers) Pop(now time.Duration) Waiter {
	if at := t.Next(); at == 0 || at > now {
		return nil
	}
	who := t.heap[0].who
	t.drop()
	return who
}

func (t *Timers) drop() {
	last := len(t.heap) - 1
	t.heap[0], t.heap[last] = t.heap[last], timer{}
	t.heap = t.heap[:last]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < last && t.heap[c].before(t.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		t.heap[i], t.heap[least] = t.heap[least], t.heap[i]
		i = least
	}
}

// Len counts the entries, stale ones included.
func (t *Timers) Len() int { return len(t.heap) }

// sweep drops the stale entries.
func (t *Timers) sweep() {
	t.heap = slices.DeleteFunc(t.heap, func(a timer) bool { return a.who.Due() != a.at })
	slices.SortFunc(t.heap, func(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) }) // a sorted list is a heap
	t.kept = len(t.heap)
}
