package router_test

import (
	"sync/atomic"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
)

// fakeLimiter admits everybody, and counts whose requests have not ended.
type fakeLimiter struct{ open atomic.Int64 }

func (l *fakeLimiter) Acquire(auth.Principal, int) (edge.Lease, edge.Allowance) {
	l.open.Add(1)
	return l, edge.Allowance{}
}

func (l *fakeLimiter) Done(int) { l.open.Add(-1) }

// TestFault58LeavesLegsBehind has the client go before decode's first token: its lease, its place and its summary are there
// while an engine still works for it, and when that has ended nothing is held.
func TestFault58LeavesLegsBehind(t *testing.T) {
	for _, row := range []struct {
		name, connector, body, leg string
		faults                     map[string][]routertest.Fault
	}{
		{"push, in prefill", connector.NamePush, routertest.PlainBody, "decode", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 2000}}}},
		{"push, in prefill, streamed", connector.NamePush, routertest.StreamBody, "decode", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 2000}}}},
		{"push, before the first token", connector.NamePush, routertest.StreamBody, "decode", map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 2000}}}},
		{"pull, in prefill", connector.NamePull, routertest.StreamBody, "prefill", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 5000}}}},
		{"pull, before the first token", connector.NamePull, routertest.StreamBody, "decode", map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 2000}}}},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			limits := new(fakeLimiter)
			g := routertest.Start(t, s.Config, router.Parts{Limiter: limits})
			g.WaitWarm()
			s.SetFaults(row.faults)
			before := s.Cluster.Count("", row.leg)
			leave(t, g, row.body, func() bool { return s.Cluster.Count("", row.leg) > before })
			if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Status != 499 || limits.open.Load() != 0 {
				t.Errorf("%d leases, summary %+v", limits.open.Load(), sum)
			}
			working := 0
			for _, e := range s.Engines() {
				working += e.UnderWay()
			}
			if working == 0 {
				t.Error("no engine works for it any more: the request was told too late, or its legs were ended")
			}
			if q := g.Router.Stats().Queues[0]; q.InFlight != 0 {
				t.Errorf("%d places are taken", q.InFlight)
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}

// TestFault58LeavesTooManyBehind has more clients leave than may leave legs behind: those of the others end at once.
func TestFault58LeavesTooManyBehind(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	s.Config.Limits.Background = 1
	g := routertest.Start(t, s.Config, router.Parts{})
	g.WaitWarm()
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 500}}})
	for i := range 3 {
		decodes := s.Cluster.Count("", "decode")
		leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("", "decode") > decodes })
		if sum := g.Summary(i + 1); sum.Outcome != dispatch.ClientLeft {
			t.Errorf("summary %+v", sum)
		}
	}
	g.WaitIdle()
}
