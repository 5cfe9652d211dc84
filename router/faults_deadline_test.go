package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestFault58DeadlineLeavesNothing has the time of a request end before decode's first token: its client has the error while the
// engines still work for it, and when they have come so far that their legs can be ended nothing is held, and nothing is counted.
func TestFault58DeadlineLeavesNothing(t *testing.T) {
	for _, row := range []struct {
		name, connector, body string
		faults                map[string][]routertest.Fault
	}{
		{"push, in prefill", connector.NamePush, routertest.StreamBody, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 3000}}}},
		{"push, before the first token", connector.NamePush, routertest.StreamBody, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 3000}}}},
		{"pull, in prefill", connector.NamePull, routertest.StreamBody, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 5000}}}},
		{"pull, before the first token", connector.NamePull, routertest.StreamBody, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 3000}}}},
		{"pull, before the answer", connector.NamePull, routertest.PlainBody, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 3000}}}},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			s.Config.Timeouts.Request, s.Config.Timeouts.RequestTotal = 500*time.Millisecond, 500*time.Millisecond
			limits := new(fakeLimiter)
			g := routertest.Start(t, s.Config, router.Parts{Limiter: limits, Planner: routertest.FirstUsable{}})
			g.WaitWarm()
			s.SetFaults(row.faults)
			before := s.Cluster.Count("", "")
			r := g.Post(routertest.PathCompletions, row.body)
			working := 0
			for _, e := range s.Engines() {
				working += e.UnderWay()
			}
			short := row.connector == connector.NamePull && row.faults["prefill-0"] != nil // the while that it gets may be over
			if routertest.ErrorOf(t, r.Body); r.Status != 504 || r.Header.Get("X-Pdrouter-Reason") != "deadline" || working == 0 && !short {
				t.Errorf("status %d, header %v, %d legs go on: %s", r.Status, r.Header, working, r.Body)
			}
			if sum := g.Summary(1); sum.Outcome != dispatch.FailedBefore || sum.Attempts != 1 || sum.Leaked || limits.open.Load() != 0 {
				t.Errorf("%d leases, summary %+v", limits.open.Load(), sum)
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
			if n := g.Router.Stats().Leaked; n != 0 {
				t.Errorf("counted %d times; want never", n)
			}
			if n := s.Cluster.Count("", "") - before; n > 2 {
				t.Errorf("engines were asked %d times; want once each", n)
			}
		})
	}
}
