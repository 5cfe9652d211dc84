package router

import (
	"testing"
	"time"
)

// halfOpen has an engine's next request be a probe, which is waited for for an hour.
func (g *gateway) halfOpen(name string) *engine {
	e := g.r.now().fleet.engine(name)
	e.vitals.mu.Lock()
	defer e.vitals.mu.Unlock()
	e.vitals.circuit.opened, e.vitals.circuit.until = true, time.Now()
	e.vitals.special.Store(true)
	return e
}

// probed reports whether a probe of the engine is waited for.
func (e *engine) probed() bool { return e.vitals.stand(time.Now(), 0).out == ejectedAnswers }

// TestFault52ProbeIsGivenBack has the request that was to be an engine's probe end before the leg was sent: the next one is.
func TestFault52ProbeIsGivenBack(t *testing.T) {
	t.Run("the client leaves first", func(t *testing.T) {
		s := newPool(t, ConnectorPull, 1, 2, nil)
		s.cfg.Health.Open, s.cfg.Health.OpenLongest = time.Hour, time.Hour
		g := start(t, s.cfg, Parts{Planner: firstUsable{}})
		eventually(t, "every pair is known", func() bool { return g.r.pairs.Stats().Ready == 2 })
		g.settled()
		e := g.halfOpen("decode-0")
		s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doHang}}})
		asked := s.c.count("decode-0", "")
		leave(t, g, plainBody, func() bool { return e.probed() && s.p[0].underWay() > 0 })
		eventually(t, "the probe is given back", func() bool { return !e.probed() })
		g.settled()
		s.setFaults(nil)
		g.served(1, plainBody)
		if got := g.stateOf("decode-0"); s.c.count("decode-0", "") != asked+1 || got.State != "slow_start" {
			t.Errorf("decode-0 was asked %d times, state %s; want the next request to be its probe", s.c.count("decode-0", "")-asked, got.State)
		}
	})
	t.Run("the pair does not come about", func(t *testing.T) {
		s := newPool(t, ConnectorPush, 2, 1, nil)
		s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doHang}}})
		s.cfg.Health.Open, s.cfg.Health.OpenLongest = time.Hour, time.Hour
		s.cfg.Timeouts.Pair, s.cfg.Timeouts.Probe = 300*time.Millisecond, 2*time.Second
		g := start(t, s.cfg, Parts{Planner: firstUsable{}})
		eventually(t, "the other pair is known", func() bool { return g.r.pairs.Stats().Ready == 1 })
		e := g.halfOpen("prefill-0")
		g.served(1, plainBody)
		if sum := g.last(1); sum.Attempts != 2 || sum.Prefill != "prefill-1" {
			t.Errorf("summary %+v; want prefill-1 behind prefill-0", sum)
		}
		s.setFaults(nil) // handshakes come to an end
		if e.probed() {
			t.Error("a probe is waited for that was not made")
		}
	})
	t.Run("it waits before it goes back", func(t *testing.T) {
		s := newPool(t, ConnectorNone, 0, 1, map[string][]fault{"decode-0": {{Nth: 1, Do: doRefuse}}})
		s.cfg.Health.Open, s.cfg.Health.OpenLongest = time.Hour, time.Hour
		s.cfg.Health.PanicPercent = 100
		g := start(t, s.cfg, Parts{Planner: firstUsable{}})
		e := g.halfOpen("decode-0")
		g.served(1, plainBody)
		s.setFaults(nil) // handshakes come to an end
		if e.probed() {
			t.Error("a probe is waited for that was not made")
		}
	})
}
