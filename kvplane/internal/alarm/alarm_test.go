package alarm

import (
	"slices"
	"testing"
	"time"
)

type waiter struct {
	name string
	at   time.Duration
}

func (w *waiter) Due() time.Duration { return w.at }

// TestTimers: what is due comes in the order of its time, equal times as they were set, and only at the time that its
// waiter has now.
func TestTimers(t *testing.T) {
	var timers Timers
	a, b, c, never := &waiter{"a", 7}, &waiter{"b", 5}, &waiter{"c", 7}, &waiter{"never", 0}
	for _, w := range []*waiter{a, b, c, never} {
		timers.Set(w)
	}
	if timers.Len() != 3 || timers.Next() != 5 {
		t.Fatalf("%d timers, the first at %d; want 3, at 5", timers.Len(), timers.Next())
	}
	b.at = 9
	timers.Set(b)
	if timers.sweep(); timers.Len() != 3 {
		t.Errorf("%d timers are left of 3 and a stale one", timers.Len())
	}
	due := func(now time.Duration) (names []string) {
		for w := timers.Pop(now); w != nil; w = timers.Pop(now) {
			names = append(names, w.(*waiter).name)
		}
		return names
	}
	if got := due(6); got != nil {
		t.Errorf("%v are due at 6", got)
	}
	if got := due(10); !slices.Equal(got, []string{"a", "c", "b"}) || timers.Next() != 0 {
		t.Errorf("%v were due, the next at %d; want a, c, b and none", got, timers.Next())
	}
}
