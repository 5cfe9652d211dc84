package kvplane

import "time"

// alarm is something that wants to be woken at a time of its own choosing.
type alarm interface {
	due() time.Duration // when; 0 is never
}

// timers is a heap of alarms. An entry counts only while it agrees with its alarm's due time, so that changing one's
// mind costs nothing but a stale entry. Equal times come in the order in which they were set.
type timers struct {
	heap []timer
	n    uint64
}

type timer struct {
	at  time.Duration
	n   uint64
	who alarm
}

func (a timer) before(b timer) bool { return a.at < b.at || a.at == b.at && a.n < b.n }

// set adds the alarm's due time.
func (t *timers) set(who alarm) {
	if who.due() == 0 {
		return
	}
	t.n++
	t.heap = append(t.heap, timer{at: who.due(), n: t.n, who: who})
	for i := len(t.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !t.heap[i].before(t.heap[up]) {
			break
		}
		t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
		i = up
	}
}

// next returns the earliest due time, 0 if there is none.
func (t *timers) next() time.Duration {
	for len(t.heap) > 0 {
		if first := t.heap[0]; first.who.due() == first.at {
			return first.at
		}
		t.drop()
	}
	return 0
}

// pop returns an alarm that is due, nil if there is none.
func (t *timers) pop(now time.Duration) alarm {
	if at := t.next(); at == 0 || at > now {
		return nil
	}
	who := t.heap[0].who
	t.drop()
	return who
}

func (t *timers) drop() {
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
