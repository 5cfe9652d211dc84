package admission_test

import (
	"testing"
	"time"

	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// TestQueueReady: requests that engines have no room for wait, others behind them do not, and an idle model takes any.
func TestQueueReady(t *testing.T) {
	for _, fair := range []bool{false, true} {
		now := time.Unix(1_700_000_000, 0)
		q, _ := newQueue(10, 10)
		q.SetOrder(fair, time.Minute)
		room := map[string]bool{}
		ask := func(tenant string) (admission.Slot, bool, *admission.Waiter) {
			now = now.Add(time.Second)
			r := admission.Request{Tenant: tenant, Arrived: now, Prompt: 1, Ready: func(int, int) bool { return room[tenant] }}
			if s, ok := q.TryAcquire(r, now); ok {
				return s, true, nil
			}
			got, w := q.Enqueue(r, now)
			return got.Slot, w == nil && got.Why == reason.None, w
		}
		first, ok, _ := ask("a")
		if !ok {
			t.Fatal("an idle model has no place")
		}
		_, ok, long := ask("long")
		if ok {
			t.Fatal("a request without room has a place")
		}
		room["short"] = true
		if short, ok, w := ask("short"); w == nil {
			t.Fatalf("a request that comes while others wait has a place: %v", ok)
		} else if got := <-w.Done(); got.Why != reason.None {
			t.Fatalf("the one with room: %v", got.Why)
		} else {
			short = got.Slot
			short.Release(admission.Used{}, now)
		}
		if len(long.Done()) > 0 {
			t.Fatal("a request without room has a place")
		}
		room["long"] = true
		q.Update()
		got := <-long.Done()
		if got.Why != reason.None {
			t.Fatal(got.Why)
		}
		room["long"] = false
		_, _, last := ask("long")
		got.Slot.Release(admission.Used{}, now)
		if len(last.Done()) > 0 {
			t.Fatal("there is room though another request is with the engines")
		}
		first.Release(admission.Used{}, now)
		if got := <-last.Done(); got.Why != reason.None {
			t.Fatal("the model is idle, and the request waits")
		}
		if s := q.Stats(); s.Waiting != 0 || s.InFlight != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// TestQueueReadyNoMore: once requests do not wait until they are ready any more, those that wait already do not either, nor do those after them.
func TestQueueReadyNoMore(t *testing.T) {
	for _, fair := range []bool{false, true} {
		now := time.Unix(1_700_000_000, 0)
		q, _ := newQueue(100, 100)
		q.SetOrder(fair, time.Minute)
		never := admission.Request{Arrived: now, Ready: func(int, int) bool { return false }}
		if _, ok := q.TryAcquire(never, now); !ok {
			t.Fatal("an idle model has no place")
		}
		var waiting []*admission.Waiter
		for range 20 {
			_, w := q.Enqueue(never, now)
			if w == nil {
				t.Fatal("a request that is not ready has a place")
			}
			waiting = append(waiting, w)
		}
		q.SetReady(false)
		q.Update()
		for i, w := range waiting {
			if len(w.Done()) == 0 {
				t.Fatalf("request %d waits still", i)
			}
		}
		if _, ok := q.TryAcquire(never, now); !ok {
			t.Error("one that comes later has no place")
		}
		q.SetReady(true)
		if _, ok := q.TryAcquire(never, now); ok {
			t.Error("one that comes when requests wait again has a place")
		}
	}
}

// TestAskedOnce: each call asks at most sixteen requests whether engines have room for them, each once, however many wait: the queue is locked meanwhile.
func TestAskedOnce(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	q, _ := newQueue(1000, 1000)
	asked := 0
	r := admission.Request{Arrived: now, Ready: func(int, int) bool { asked++; return false }}
	var slots []admission.Slot
	for range 2 {
		s, ok := q.TryAcquire(admission.Request{Arrived: now}, now)
		if !ok {
			t.Fatal("no place")
		}
		slots = append(slots, s)
	}
	var waiting []*admission.Waiter
	for range 100 {
		_, w := q.Enqueue(r, now)
		waiting = append(waiting, w)
	}
	for _, row := range []struct {
		call string
		do   func()
	}{
		{"TryAcquire", func() { q.TryAcquire(r, now) }},
		{"Enqueue", func() { q.Enqueue(r, now) }},
		{"Update", q.Update},
		{"Release", func() { slots[0].Release(admission.Used{}, now) }},
		{"Drop", func() { q.Drop(waiting[0], reason.ClientLeft, now) }},
	} {
		asked = 0
		if row.do(); asked > 16 {
			t.Errorf("%s asks %d times", row.call, asked)
		}
	}
}
