package fleet

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/policies"
	"pdrouter/router/admission"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// rooms is a policy by which engines have room for a request when told so.
type rooms struct{ *policies.Policy }

func (rooms) Costs(string) bool { return true }

// slowRooms takes time to say so.
type slowRooms struct {
	rooms
	takes, asked *atomic.Int64
	room         *atomic.Bool
}

func (r slowRooms) Room(policies.Request, policies.Fleet, policies.Draw, int, int) bool {
	time.Sleep(time.Duration(r.takes.Load()))
	r.asked.Add(1)
	return r.room.Load()
}

// TestAskingTakesAPart: the queue is not locked for most of the time by requests that are asked whether there is room, however long that takes. Once there
// is room, those that wait get their places.
func TestAskingTakesAPart(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Microsecond, 200 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			p := slowRooms{rooms{policies.Default()}, new(atomic.Int64), new(atomic.Int64), new(atomic.Bool)}
			cfg := ofEngines("a")
			cfg.Queue.ByObjective = true
			f := fleetOf(t, cfg, Parts{Planner: p}, nil)
			defer f.Close()
			f.Engine("a").Reached()
			body, e := openai.ParseBody(openai.ShapeCompletions, []byte(`{"model":"m","prompt":"a"}`), openai.Limits{})
			if e != nil {
				t.Fatal(e)
			}
			m := f.Models["m"]
			if _, ok := m.Queue.TryAcquire(admission.Request{Arrived: time.Now()}, time.Now()); !ok {
				t.Fatal("an idle engine has no place")
			}
			var waiting []*admission.Waiter
			for range 100 {
				r := f.RoomFor(m, "", body, "")
				defer r.End()
				_, w := m.Queue.Enqueue(admission.Request{Arrived: time.Now(), Ready: r.Ready}, time.Now())
				waiting = append(waiting, w)
			}
			p.asked.Store(0)
			p.takes.Store(int64(takes))
			time.Sleep(time.Second)
			looks := int(time.Second / lookAgain)
			asked, most := int(p.asked.Load()), int((time.Second/askParts+askAtOnce)/takes)
			if asked > most || asked < min(15*(looks-1), most/2) {
				t.Errorf("where each takes %v, %d are asked in a second, in %d looks; want at most %d", takes, asked, looks, most)
			}
			p.room.Store(true)
			time.Sleep(time.Second)
			for i, w := range waiting {
				select {
				case <-w.Done():
				default:
					t.Errorf("%d has no place", i)
				}
			}
		})
	}
}

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
