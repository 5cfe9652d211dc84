package fleet

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/policies"
	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// rooms is a policy by which engines have room for a request when told so.
type rooms struct{ *policies.Policy }

func (rooms) Costs(string) bool { return true }

// TestLooksAgainMeanwhile: the queue looks whether there is room though requests leave it all the time, or it is asked how it is.
func TestLooksAgainMeanwhile(t *testing.T) {
	for name, often := range map[string]func(*admission.Queue, *admission.Waiter){
		"requests leave": func(q *admission.Queue, w *admission.Waiter) { q.Drop(w, reason.Objective, time.Now()) },
		"it is asked":    func(q *admission.Queue, _ *admission.Waiter) { q.Stats() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := ofEngines("a")
				cfg.Queue.ByObjective = true
				f := fleetOf(t, cfg, Parts{Planner: rooms{policies.Default()}}, nil)
				defer f.Close()
				f.Engine("a").Reached()
				q := f.Models["m"].Queue
				if _, ok := q.TryAcquire(admission.Request{Arrived: time.Now()}, time.Now()); !ok {
					t.Fatal("an idle engine has no place")
				}
				var room atomic.Bool
				ready := func(int, int) bool { return room.Load() }
				enqueue := func() *admission.Waiter {
					_, w := q.Enqueue(admission.Request{Arrived: time.Now(), Ready: ready}, time.Now())
					if w == nil {
						t.Fatal("it does not wait")
					}
					return w
				}
				first := enqueue()
				var others []*admission.Waiter
				for range 100 {
					others = append(others, enqueue())
				}
				room.Store(true)
				for _, w := range others {
					time.Sleep(lookAgain / 4)
					often(q, w)
				}
				synctest.Wait()
				select {
				case got := <-first.Done():
					if got.Why != reason.None {
						t.Error(got.Why)
					}
				default:
					t.Errorf("engines have room for %v, and no request has a place", 100*lookAgain/4)
				}
				for _, w := range others {
					q.Drop(w, reason.Shutdown, time.Now())
				}
			})
		})
	}
}
