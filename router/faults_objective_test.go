package router_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router/connector"
)

// oneByOne is the policy cost, but for engines that have room for one request at a time and take 0.9 s for each prompt.
type oneByOne struct{ *policies.Policy }

func (oneByOne) OnIdle(policies.Request, policies.Fleet, policies.Draw) policies.Choice {
	return policies.Choice{TTFT: .9}
}

func (oneByOne) Room(_ policies.Request, f policies.Fleet, _ policies.Draw, unbegun, _ int) bool {
	return f.Decode[0].InFlight+unbegun == 0
}

func (oneByOne) RoomIn(policies.Request, policies.Fleet, policies.Draw) float64 { return 2.4 }

// TestFault63Objective sends eight requests at once to an engine that has room for one. It takes 0.9 s for a prompt and 2.7 s for an answer; the
// objective is 2 s. A request is refused when it can no longer be in time, and told when there should be room. An idle engine serves whatever comes,
// also what it cannot serve in time.
func TestFault63Objective(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Queue.ByObjective = true
		s.Config.Timeouts.Queue = time.Minute // one in sixteen requests may wait as long
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 900}}})
		parts.Planner = oneByOne{policies.Default()}
		g := routertest.StartIn(t, n, s.Config, parts)
		ask := func(header ...string) routertest.Reply {
			return g.Post(routertest.PathCompletions, routertest.StreamBody, header...)
		}
		if r := ask("X-Slo-Ttft-Ms", "1"); r.Status != 200 {
			t.Fatalf("an idle engine: status %d: %s", r.Status, r.Body)
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		got := map[int]int{}
		began := time.Now()
		for range 8 {
			wg.Go(func() {
				r := ask()
				mu.Lock()
				defer mu.Unlock()
				if got[r.Status]++; r.Status == 200 {
					return
				}
				after, err := strconv.Atoi(r.Header.Get("Retry-After"))
				if r.Status != 429 || r.Header.Get("X-Pdrouter-Reason") != "objective" || err != nil || after != 3 {
					t.Errorf("status %d, %v: %s", r.Status, r.Header, r.Body)
				}
				if waited := time.Since(began); waited < 500*time.Millisecond || waited > 1100*time.Millisecond {
					t.Errorf("it was refused after %v; want 1.75 s without the 0.9 s of its prompt", waited)
				}
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if got[200] == 0 || got[429] < 3 {
			t.Errorf("statuses %v; want some of 200 and most of 429", got)
		}
		g.WaitIdle()
		if r := ask(); r.Status != 200 {
			t.Errorf("afterwards: status %d: %s", r.Status, r.Body)
		}
		if q := g.Router.Stats().Queues[0]; q.Waiting != 0 || q.Denied["objective"] != uint64(got[429]) {
			t.Errorf("%+v", q)
		}
	})
}

// TestObjectiveTurnedOff turns queue.by_objective off while requests wait for room that a long answer takes: they are served at once, and so are those that come
// then.
func TestObjectiveTurnedOff(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Queue.ByObjective = true
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 30_000}, {Do: routertest.DoSlow, N: 1, Nth: -1}}})
		parts.Planner = oneByOne{policies.Default()}
		g := routertest.StartIn(t, n, s.Config, parts)
		var wg sync.WaitGroup
		ask := func() {
			wg.Go(func() {
				if r := g.Post(routertest.PathCompletions, routertest.StreamBody, "X-Slo-Ttft-Ms", "20000"); r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			})
			time.Sleep(time.Millisecond)
		}
		for range 21 {
			ask()
		}
		if q := g.Router.Stats().Queues[0]; q.Waiting != 20 {
			t.Fatalf("%+v; want 20 that wait", q)
		}
		off := s.Config
		off.Queue.ByObjective = false
		if err := g.Router.Apply(off, parts); err != nil {
			t.Fatal(err)
		}
		ask()
		if q := g.Router.Stats().Queues[0]; q.Waiting != 0 {
			t.Errorf("%+v; want none that waits", q)
		}
		wg.Wait()
	})
}
