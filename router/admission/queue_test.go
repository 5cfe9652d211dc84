package admission_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// places is a model with that many places.
type places struct{ n atomic.Int64 }

func (p *places) Places(int, int) int { return int(p.n.Load()) }

func newQueue(n, length int) (*admission.Queue, *places) {
	q, p := new(admission.Queue), new(places)
	p.n.Store(int64(n))
	q.SetLimits(p, length)
	return q, p
}

// TestQueueResults has the wait of a request end in every way.
func TestQueueResults(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	q, p := newQueue(1, 2)
	first, ok := q.TryAcquire(admission.Request{}, now)
	if !ok {
		t.Fatal("the only place is not free")
	}
	if _, ok := q.TryAcquire(admission.Request{}, now); ok {
		t.Error("there are two places")
	}
	_, dropped := q.Enqueue(admission.Request{Priority: 0, Arrived: now}, now)
	_, replaced := q.Enqueue(admission.Request{Priority: -1, Arrived: now}, now)
	if got, w := q.Enqueue(admission.Request{Priority: -1, Arrived: now}, now); w != nil || got.Why != reason.QueueFull {
		t.Errorf("enqueued in a full queue: %+v", got)
	}
	_, granted := q.Enqueue(admission.Request{Priority: 0, Arrived: now}, now)
	q.Drop(dropped, reason.ClientLeft, now)
	q.Drop(dropped, reason.Shutdown, now)
	first.Release(admission.Used{}, now)
	first.Release(admission.Used{}, now)
	for _, row := range []struct {
		w    *admission.Waiter
		want reason.Reason
	}{{dropped, reason.ClientLeft}, {replaced, reason.QueueFull}, {granted, reason.None}} {
		got := <-row.w.Done()
		if got.Why != row.want {
			t.Errorf("the wait ended with %v; want %v", got.Why, row.want)
		}
		got.Slot.Release(admission.Used{}, now)
	}
	p.n.Store(0)
	_, w := q.Enqueue(admission.Request{Priority: 0, Arrived: now}, now)
	p.n.Store(1)
	q.Update()
	if got := <-w.Done(); got.Why != reason.None {
		t.Errorf("an added place: %v", got.Why)
	}
	s := q.Stats()
	if s.InFlight != 1 || s.Places != 1 || s.Waiting != 0 || s.Waited != 4 || s.Denied["queue_full"] != 2 || s.Denied["client_left"] != 1 ||
		s.Denied["shutdown"] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestQueueConcurrent has requests come, wait, give up and end on goroutines, with a number of places that changes. Never more are with
// engines than there were places, and at the end none is.
func TestQueueConcurrent(t *testing.T) {
	const most = 4
	q, p := newQueue(most, 8)
	q.SetOrder(true, time.Millisecond)
	var running atomic.Int64
	var wg sync.WaitGroup
	for seed := range uint64(32) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 200 {
				now := time.Now()
				if seed == 0 {
					p.n.Store(rng.Int64N(most + 1))
					q.Update()
				}
				r := admission.Request{Priority: rng.IntN(3), Arrived: now, Tenant: string('a' + rune(rng.IntN(3))), Session: rng.Uint64N(4), Prompt: rng.IntN(9999)}
				slot, ok := q.TryAcquire(r, now)
				if !ok {
					got, w := q.Enqueue(r, now)
					if w != nil {
						if rng.IntN(2) == 0 || seed == 0 {
							q.Drop(w, reason.QueueTimeout, now)
						} else {
							go q.Drop(w, reason.ClientLeft, now)
						}
						got = <-w.Done()
					}
					if got.Why != reason.None {
						continue
					}
					slot = got.Slot
				}
				if n := running.Add(1); n > most {
					t.Errorf("%d requests have a place; want at most %d", n, most)
				}
				running.Add(-1)
				slot.Release(admission.Used{Computed: rng.IntN(9999), Output: rng.IntN(999), Unknown: rng.IntN(9) == 0}, time.Now())
			}
		})
	}
	wg.Wait()
	if s := q.Stats(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// TestQueueOrderReloaded has the order change while requests wait: those that wait and those that come go by the new one.
func TestQueueOrderReloaded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	q, _ := newQueue(1, 10)
	q.SetOrder(true, time.Minute)
	slot, _ := q.TryAcquire(admission.Request{}, now)
	var waits []*admission.Waiter
	enter := func(tenant string) {
		_, w := q.Enqueue(admission.Request{Arrived: now, Tenant: tenant, Prompt: 1000}, now)
		waits = append(waits, w)
		now = now.Add(time.Millisecond)
	}
	served := func() int {
		slot.Release(admission.Used{Computed: 1000}, now)
		for i, w := range waits {
			select {
			case got := <-w.Done():
				slot = got.Slot
				return i
			default:
			}
		}
		return -1
	}
	for _, tenant := range []string{"a", "a", "a", "b", "c"} {
		enter(tenant)
	}
	got := []int{served(), served()} // a, then b, which has received nothing
	q.SetOrder(false, time.Minute)
	enter("d")
	got = append(got, served(), served())
	q.SetOrder(true, time.Hour)
	got = append(got, served(), served())
	if want := []int{0, 3, 1, 2, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("served %v; want %v", got, want)
	}
	slot.Release(admission.Used{}, now)
	if s := q.Stats(); s.Waiting != 0 || s.InFlight != 0 || s.Tenants != 0 || s.Largest != 0 {
		t.Errorf("%+v", s)
	}
}
