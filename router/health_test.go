package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// TestFault52BrokenEngineIsOut: an engine that says it is healthy and fails every request gets none after a few, and is used
// again after one that it serves.
func TestFault52BrokenEngineIsOut(t *testing.T) {
	for _, do := range []string{routertest.DoError, routertest.DoReset, routertest.DoGarbage} {
		routertest.RunVirtual(t, do, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
			s.Config.Health.BaseEjectionTime = 300 * time.Millisecond
			s.Config.Limits.RetryFloor = new(100)
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: do}}})
			g.MustServe(5, routertest.PlainBody)
			if got := g.EngineStats("decode-0"); got.Ejections["answers"] != 1 || got.Why == "" {
				t.Fatalf("after 5 failures: %+v", got)
			}
			routertest.Eventually(t, "the next one is a probe", func() bool { return g.EngineStats("decode-0").State == "half_open" })
			before := s.Cluster.Count("decode-0", "")
			g.MustServe(1, routertest.PlainBody) // the probe fails, its client sees nothing of that
			if got := s.Cluster.Count("decode-0", ""); got == before || g.EngineStats("decode-0").Ejections["answers"] != 2 {
				t.Errorf("%d requests, then %d; %+v", before, got, g.EngineStats("decode-0"))
			}
			s.SetFaults(nil)
			routertest.Eventually(t, "it is used again", func() bool {
				g.MustServe(1, routertest.PlainBody)
				return g.EngineStats("decode-0").State == "slow_start"
			})
		})
	}
}

// TestFault53StalledStreamsAreSeen: an engine whose streams stand still is out, though it answers each request at first.
func TestFault53StalledStreamsAreSeen(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
	s.Config.Timeouts.StreamIdle = 100 * time.Millisecond
	s.Config.Health.Failures, s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime = 2, time.Hour, time.Hour
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBigToken, N: 10}}})
	for range 2 {
		if r := g.Post(routertest.PathCompletions, routertest.StreamBody); r.Err == nil {
			t.Errorf("a clean end: %s", r.Body)
		}
	}
	if got := g.EngineStats("decode-0"); got.State != "open" || got.Ejections["streams"] != 1 {
		t.Errorf("%+v", got)
	}
	g.MustServe(3, routertest.StreamBody)
}

// TestFault48RejectionsNeverEject: what engines reject is the requests' fault, however much of it comes.
func TestFault48RejectionsNeverEject(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReject}}})
	for range 30 {
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 400 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
	}
	if got := g.EngineStats("decode-0"); got.State != "up" {
		t.Errorf("%+v", got)
	}
}

// TestFault64AllFail: where every engine fails every request, answers are true errors, and one that is served ends it.
func TestFault64AllFail(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
	s.Config.Limits.Attempts = 1
	s.Config.Health.Failures, s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime = 2, 100*time.Millisecond, 100*time.Millisecond
	g := routertest.Start(t, s.Config, router.Parts{})
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}, "decode-1": {{Do: routertest.DoError}}})
	for range 10 {
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "decode_failed" {
			t.Fatalf("status %d, %v: %s", r.Status, r.Header, r.Body)
		}
	}
	if st := g.Router.Stats(); len(st.PanicModes) != 1 || st.PanicModes[0] != (fleet.PanicMode{Model: "tiny", Role: "decode"}) {
		t.Errorf("%+v", st.PanicModes)
	}
	s.SetFaults(nil)
	g.MustServe(1, routertest.PlainBody)
	routertest.Eventually(t, "both are in use", func() bool {
		g.MustServe(1, routertest.PlainBody)
		return g.EngineStats("decode-0").State == "slow_start" && g.EngineStats("decode-1").State == "slow_start" && len(g.Router.Stats().PanicModes) == 0
	})
}

// TestPanicModeSparesWhatWorks: where most engines are out and one works, the policy cost gives requests to that one.
func TestPanicModeSparesWhatWorks(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
	s.Config.Health.Failures, s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime = 2, time.Hour, time.Hour
	s.Config.Limits.RetryFloor = new(1 << 20)
	g := routertest.Start(t, s.Config, router.Parts{Planner: policies.Default()})
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}, "decode-1": {{Do: routertest.DoError}}})
	routertest.Eventually(t, "two are out", func() bool {
		g.MustServe(1, routertest.PlainBody)
		return g.EngineStats("decode-0").State == "open" && g.EngineStats("decode-1").State == "open"
	})
	failed := s.Cluster.Count("decode-0", "") + s.Cluster.Count("decode-1", "")
	g.MustServe(20, routertest.PlainBody)
	if len(g.Router.Stats().PanicModes) != 1 {
		t.Error("not in panic mode")
	}
	if again := s.Cluster.Count("decode-0", "") + s.Cluster.Count("decode-1", "") - failed; again > 0 {
		t.Errorf("%d of 20 requests went to an engine that is out", again)
	}
}

// TestFault63OverloadedEngineRests: an engine that refuses a request for being overloaded gets none for a moment, and that is
// all that is held against it.
func TestFault63OverloadedEngineRests(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
	s.Config.Health.Overload = time.Hour // five seconds at most
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Nth: 1, Do: routertest.DoRefuse}}})
	g.MustServe(3, routertest.PlainBody)
	if got := g.EngineStats("decode-0"); got.State != "overloaded" || got.Ejections["overload"] != 1 || s.Cluster.Count("decode-0", "") != 1 {
		t.Errorf("%+v, %d requests", got, s.Cluster.Count("decode-0", ""))
	}
}

// TestFault54PairIsAvoided: where transfers between two engines fail, the two are not paired any more, either goes on with others,
// and a handshake brings the pair back.
func TestFault54PairIsAvoided(t *testing.T) {
	s, _, parts := routertest.NewPlane(t, 1, 2)
	parts.Planner = nil
	s.Config.Health.BaseEjectionTime = 200 * time.Millisecond
	s.Config.Limits.RetryFloor = new(100)
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoNoKV}}})
	out := func() bool {
		st := g.Router.Stats().PairsOut
		return len(st) == 1 && st[0].Decode == "decode-0" && st[0].State != "closed"
	}
	routertest.Eventually(t, "the pair is out", func() bool { g.MustServe(1, routertest.PlainBody); return out() })
	for range 5 {
		g.MustServe(1, routertest.PlainBody)
	}
	if got := g.EngineStats("decode-0"); got.State != "up" {
		t.Errorf("the engine itself: %+v", got)
	}
	g.Mu.Lock()
	for _, sum := range g.Summaries[len(g.Summaries)-5:] {
		if sum.Attempts != 1 || sum.Decode != "decode-1" || sum.Prefill != "prefill-0" {
			t.Errorf("summary %+v", sum)
		}
	}
	g.Mu.Unlock()
	s.SetFaults(nil)
	routertest.Eventually(t, "the pair is back", func() bool { return !out() })
	g.WaitWarm()
}

// TestFault64ReadinessIsThePolicys: with no prefill engine a model is ready exactly where the policy lets decode serve alone.
func TestFault64ReadinessIsThePolicys(t *testing.T) {
	for when, want := range map[string]bool{"reject": false, "aggregate": true} {
		t.Run(when, func(t *testing.T) {
			planner := routertest.Policy(t, policies.Choosing{Split: policies.SplitRule{OnNoPrefill: when}})
			s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
			s.Config.Timeouts.Health = 20 * time.Millisecond
			g := routertest.Start(t, s.Config, router.Parts{Planner: planner})
			routertest.Eventually(t, "ready", func() bool { return g.Router.Stats().Ready })
			s.Prefill[0].Server.CloseClientConnections()
			s.Prefill[0].Server.Close()
			routertest.Eventually(t, "prefill is down", func() bool { return g.EngineStats("prefill-0").State == "down" })
			if st := g.Router.Stats(); st.Ready != want || st.Models["tiny"] != want {
				t.Errorf("ready %v, models %v; want %v", st.Ready, st.Models, want)
			}
		})
	}
}

// TestReadyOnceChecked: nothing is ready of which nothing is known.
func TestReadyOnceChecked(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	r, err := router.New(s.Config, router.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if st := r.Stats(); st.Ready || st.Engines[0].State != "unchecked" {
		t.Errorf("%+v", st)
	}
	r.Debug().Engine("decode-0").Reached()
	if st := r.Stats(); !st.Ready || st.Engines[0].State != "up" {
		t.Errorf("%+v", st)
	}
}
