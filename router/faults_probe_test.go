package router

import (
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestFault52ProbeExpires has the client of an engine's probe leave, before the engine was asked and while its answer is streamed. Such
// a probe says nothing of the engine. The first request after health.open is the next probe.
func TestFault52ProbeExpires(t *testing.T) {
	for _, row := range []struct {
		name, body, engine string
		fault              fault
	}{
		{"before it was sent", plainBody, "prefill-0", fault{Leg: "prefill", Do: doHang}},
		{"while it streams", streamBody, "decode-0", fault{Do: doLateToken, N: 3_600_000}},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s := newPool(t, connector.NamePull, 1, 2, nil)
			s.cfg.Health.Open, s.cfg.Health.OpenLongest = time.Hour, time.Hour
			g := start(t, s.cfg, Parts{Planner: firstUsable{}})
			eventually(t, "every pair is known", func() bool { return g.r.Stats().Handshakes.Ready == 2 })
			g.settled()
			e := g.r.Debug().Engine("decode-0")
			e.HalfOpen(health.StreamFailed)
			s.setFaults(map[string][]fault{row.engine: {row.fault}})
			asked := s.c.count("decode-0", "")
			leave(t, g, row.body, func() bool { return e.Probed() && (s.p[0].underWay() > 0 || s.c.count("decode-0", "") > asked) })
			g.settled()
			s.setFaults(nil)
			asked = s.c.count("decode-0", "")
			if g.served(1, plainBody); !e.Probed() || s.c.count("decode-0", "") != asked {
				t.Error("the probe has not been waited for")
			}
			time.Sleep(s.cfg.Health.Open)
			g.served(1, plainBody)
			if got := g.stateOf("decode-0"); s.c.count("decode-0", "") != asked+1 || got.State != "slow_start" {
				t.Errorf("decode-0 was asked %d times, state %s; want the next request to be its probe", s.c.count("decode-0", "")-asked, got.State)
			}
		})
	}
}

// TestFault52ProbeIsNotShutOut has the request that is the probe of the only decode engine fail before decode has answered: it, and no
// other request, may ask that engine at once.
func TestFault52ProbeIsNotShutOut(t *testing.T) {
	t.Run("prefill refuses", func(t *testing.T) {
		s := newPool(t, connector.NamePull, 2, 1, nil)
		s.cfg.Health.Open, s.cfg.Health.OpenLongest, s.cfg.Health.PanicPercent = time.Hour, time.Hour, 100
		g := start(t, s.cfg, Parts{Planner: firstUsable{}})
		eventually(t, "every pair is known", func() bool { return g.r.Stats().Handshakes.Ready == 2 })
		g.settled()
		g.r.Debug().Engine("decode-0").HalfOpen(health.AnswerFailed)
		s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doRefuse}}})
		g.served(1, plainBody)
		if sum := g.last(1); sum.Attempts != 2 || sum.Prefill != "prefill-1" {
			t.Errorf("summary %+v; want prefill-1 after prefill-0", sum)
		}
	})
	t.Run("decode refuses", func(t *testing.T) {
		s := newPool(t, connector.NameNone, 0, 1, map[string][]fault{"decode-0": {{Nth: 1, Do: doRefuse}}})
		s.cfg.Health.Open, s.cfg.Health.OpenLongest, s.cfg.Health.PanicPercent = time.Hour, time.Hour, 100
		g := start(t, s.cfg, Parts{Planner: firstUsable{}})
		g.r.Debug().Engine("decode-0").HalfOpen(health.AnswerFailed)
		g.served(1, plainBody)
	})
}
