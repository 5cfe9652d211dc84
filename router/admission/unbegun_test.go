package admission_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// TestQueueBurst: of thousands of requests that come before engines are known to have any of them, as many get places as there is room for.
func TestQueueBurst(t *testing.T) {
	const room, tokens = 5, 7
	now := time.Unix(1_700_000_000, 0)
	q, _ := newQueue(4000, 4000)
	var slots []*admission.Slot
	known := 0 // requests that engines are known to have
	ready := func(unbegun, prompts int) bool {
		if prompts != tokens*unbegun {
			t.Fatalf("%d requests have prompts of %d tokens; want %d each", unbegun, prompts, tokens)
		}
		return known+unbegun < room
	}
	var waiting []*admission.Waiter
	receive := func() (got int) {
		q.Update()
		for len(waiting) > 0 && len(waiting[0].Done()) > 0 {
			r := <-waiting[0].Done()
			slots, waiting = append(slots, &r.Slot), waiting[1:]
			got++
		}
		return got
	}
	for range 3000 {
		r := admission.Request{Arrived: now, Prompt: tokens, Ready: ready}
		if s, ok := q.TryAcquire(r, now); ok {
			slots = append(slots, &s)
		} else if got, w := q.Enqueue(r, now); w != nil {
			waiting = append(waiting, w)
		} else if got.Why == reason.None {
			slots = append(slots, &got.Slot)
		} else {
			t.Fatal(got.Why)
		}
	}
	if receive(); len(slots) != room {
		t.Fatalf("%d requests have places; want %d", len(slots), room)
	}
	for _, s := range slots {
		known++ // first engines have it
		s.Begun()
		s.Begun()
	}
	if n := receive(); n != 0 || q.Stats().Unbegun != 0 {
		t.Fatalf("%d more have places once engines have the first ones, and %d are unbegun; want none", n, q.Stats().Unbegun)
	}
	known--
	slots[0].Release(admission.Used{}, now)
	if n := receive(); n != 1 || q.Stats().Unbegun != 1 {
		t.Fatalf("%d have places after the end of one, %d are unbegun; want 1", n, q.Stats().Unbegun)
	}
	slots[room].Release(admission.Used{}, now) // before an engine has it
	if n := receive(); n != 1 || q.Stats().Unbegun != 1 {
		t.Fatalf("%d have places after one that no engine was given, %d are unbegun; want 1", n, q.Stats().Unbegun)
	}
}

// TestUnbegunWalks has requests come, get places, be given to engines and end in any order, each of which may be left out. None counts after its end.
func TestUnbegunWalks(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		now := time.Unix(1_700_000_000, 0)
		q, _ := newQueue(8, 8)
		q.SetOrder(seed%2 == 0, time.Minute)
		type placed struct {
			admission.Slot
			counts bool
		}
		var slots []*placed
		type waits struct {
			*admission.Waiter
			counts bool
		}
		var waiting []waits
		receive := func() {
			var still []waits
			for _, w := range waiting {
				if len(w.Done()) == 0 {
					still = append(still, w)
				} else if r := <-w.Done(); r.Why == reason.None {
					slots = append(slots, &placed{r.Slot, w.counts})
				}
			}
			waiting = still
		}
		for range 100 {
			now = now.Add(time.Millisecond)
			switch n := rng.IntN(5); {
			case n < 2:
				r := admission.Request{Arrived: now, Prompt: rng.IntN(100)}
				if rng.IntN(4) > 0 {
					r.Ready = func(unbegun, _ int) bool { return unbegun < 3 && rng.IntN(2) == 0 }
				}
				if s, ok := q.TryAcquire(r, now); ok {
					slots = append(slots, &placed{s, r.Ready != nil})
				} else if got, w := q.Enqueue(r, now); w != nil {
					waiting = append(waiting, waits{w, r.Ready != nil})
				} else if got.Why == reason.None {
					slots = append(slots, &placed{got.Slot, r.Ready != nil})
				}
			case n == 2 && len(slots) > 0:
				s := slots[rng.IntN(len(slots))]
				s.Begun()
				s.counts = false
			case n == 3 && len(slots) > 0:
				i := rng.IntN(len(slots))
				slots[i].Release(admission.Used{Unknown: rng.IntN(2) == 0}, now)
				slots = append(slots[:i], slots[i+1:]...)
			case len(waiting) > 0:
				q.Drop(waiting[rng.IntN(len(waiting))].Waiter, reason.ClientLeft, now)
			}
			receive()
			want := 0
			for _, s := range slots {
				if s.counts {
					want++
				}
			}
			if got := q.Stats().Unbegun; got != want {
				t.Fatalf("seed %d: %d are unbegun; want %d", seed, got, want)
			}
		}
	}
}
