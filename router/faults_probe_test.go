package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestFault52ProbeExpires has the client of an engine's probe leave, before the engine was asked and while its answer is streamed. Such
// a probe says nothing of the engine. The first request after health.base_ejection_time is the next probe.
func TestFault52ProbeExpires(t *testing.T) {
	for _, row := range []struct {
		name, body, engine string
		fault              routertest.Fault
	}{
		{"before it was sent", routertest.PlainBody, "prefill-0", routertest.Fault{Leg: "prefill", Do: routertest.DoHang}},
		{"while it streams", routertest.StreamBody, "decode-0", routertest.Fault{Do: routertest.DoLateToken, N: 3_600_000}},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NamePull, 1, 2, nil)
			s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime = time.Hour, time.Hour
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 2 })
			g.WaitIdle()
			e := g.Router.Debug().Engine("decode-0")
			e.HalfOpen(health.StreamFailed)
			s.SetFaults(map[string][]routertest.Fault{row.engine: {row.fault}})
			asked := s.Cluster.Count("decode-0", "")
			leave(t, g, row.body, func() bool {
				return e.Probed() && (s.Prefill[0].UnderWay() > 0 || s.Cluster.Count("decode-0", "") > asked)
			})
			g.WaitIdle()
			s.SetFaults(nil)
			asked = s.Cluster.Count("decode-0", "")
			if g.MustServe(1, routertest.PlainBody); !e.Probed() || s.Cluster.Count("decode-0", "") != asked {
				t.Error("the probe has not been waited for")
			}
			time.Sleep(s.Config.Health.BaseEjectionTime)
			g.MustServe(1, routertest.PlainBody)
			if got := g.EngineStats("decode-0"); s.Cluster.Count("decode-0", "") != asked+1 || got.State != "slow_start" {
				t.Errorf("decode-0 was asked %d times, state %s; want the next request to be its probe", s.Cluster.Count("decode-0", "")-asked, got.State)
			}
		})
	}
}

// TestFault52ProbeIsNotShutOut has the request that is the probe of the only decode engine fail before decode has answered: it, and no
// other request, may ask that engine at once.
func TestFault52ProbeIsNotShutOut(t *testing.T) {
	t.Run("prefill refuses", func(t *testing.T) {
		s := routertest.NewPool(t, connector.NamePull, 2, 1, nil)
		s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime, s.Config.Health.PanicPercent = time.Hour, time.Hour, 100
		g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
		routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 2 })
		g.WaitIdle()
		g.Router.Debug().Engine("decode-0").HalfOpen(health.AnswerFailed)
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuse}}})
		g.MustServe(1, routertest.PlainBody)
		if sum := g.Summary(1); sum.Attempts != 2 || sum.Prefill != "prefill-1" {
			t.Errorf("summary %+v; want prefill-1 after prefill-0", sum)
		}
	})
	t.Run("decode refuses", func(t *testing.T) {
		s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Nth: 1, Do: routertest.DoRefuse}}})
		s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime, s.Config.Health.PanicPercent = time.Hour, time.Hour, 100
		g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
		g.Router.Debug().Engine("decode-0").HalfOpen(health.AnswerFailed)
		g.MustServe(1, routertest.PlainBody)
	})
}
