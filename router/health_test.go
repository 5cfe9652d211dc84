package router

import (
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// TestFault52BrokenEngineIsOut: an engine that says it is healthy and fails every request gets none after a few, and is used
// again after one that it serves.
func TestFault52BrokenEngineIsOut(t *testing.T) {
	for _, do := range []string{doError, doReset, doGarbage} {
		unhurried(t, do, func(t *testing.T) {
			s := newPool(t, connector.NameNone, 0, 3, nil)
			s.cfg.Health.Open = 300 * time.Millisecond
			s.cfg.Limits.RetryFloor = new(100)
			g := start(t, s.cfg, Parts{Planner: firstUsable{}})
			s.setFaults(map[string][]fault{"decode-0": {{Do: do}}})
			g.served(5, plainBody)
			if got := g.stateOf("decode-0"); got.Ejections["answers"] != 1 || got.Why == "" {
				t.Fatalf("after 5 failures: %+v", got)
			}
			eventually(t, "the next one is a probe", func() bool { return g.stateOf("decode-0").State == "half_open" })
			before := s.c.count("decode-0", "")
			g.served(1, plainBody) // the probe fails, its client sees nothing of that
			if got := s.c.count("decode-0", ""); got == before || g.stateOf("decode-0").Ejections["answers"] != 2 {
				t.Errorf("%d requests, then %d; %+v", before, got, g.stateOf("decode-0"))
			}
			s.setFaults(nil)
			eventually(t, "it is used again", func() bool { g.served(1, plainBody); return g.stateOf("decode-0").State == "slow_start" })
		})
	}
}

// TestFault53StalledStreamsAreSeen: an engine whose streams stand still is out, though it answers each request at first.
func TestFault53StalledStreamsAreSeen(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 2, nil)
	s.cfg.Timeouts.Stream = 100 * time.Millisecond
	s.cfg.Health.Failures, s.cfg.Health.Open, s.cfg.Health.OpenLongest = 2, time.Hour, time.Hour
	g := start(t, s.cfg, Parts{Planner: firstUsable{}})
	s.setFaults(map[string][]fault{"decode-0": {{Do: doBigToken, N: 10}}})
	for range 2 {
		if r := g.post(pathCompletions, streamBody); r.Err == nil {
			t.Errorf("a clean end: %s", r.Body)
		}
	}
	if got := g.stateOf("decode-0"); got.State != "open" || got.Ejections["streams"] != 1 {
		t.Errorf("%+v", got)
	}
	g.served(3, streamBody)
}

// TestFault48RejectionsNeverEject: what engines reject is the requests' fault, however much of it comes.
func TestFault48RejectionsNeverEject(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 3, nil)
	g := start(t, s.cfg, Parts{Planner: firstUsable{}})
	s.setFaults(map[string][]fault{"decode-0": {{Do: doReject}}})
	for range 30 {
		if r := g.post(pathCompletions, plainBody); r.Status != 400 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
	}
	if got := g.stateOf("decode-0"); got.State != "up" {
		t.Errorf("%+v", got)
	}
}

// TestFault64AllFail: where every engine fails every request, answers are true errors, and one that is served ends it.
func TestFault64AllFail(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 2, nil)
	s.cfg.Limits.Attempts = 1
	s.cfg.Health.Failures, s.cfg.Health.Open, s.cfg.Health.OpenLongest = 2, 100*time.Millisecond, 100*time.Millisecond
	g := start(t, s.cfg, Parts{})
	s.setFaults(map[string][]fault{"decode-0": {{Do: doError}}, "decode-1": {{Do: doError}}})
	for range 10 {
		if r := g.post(pathCompletions, plainBody); r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "decode_failed" {
			t.Fatalf("status %d, %v: %s", r.Status, r.Header, r.Body)
		}
	}
	if st := g.r.Stats(); len(st.Anyway) != 1 || st.Anyway[0] != (fleet.Anyway{Model: "tiny", Role: "decode"}) {
		t.Errorf("%+v", st.Anyway)
	}
	s.setFaults(nil)
	g.served(1, plainBody)
	eventually(t, "both are in use", func() bool {
		g.served(1, plainBody)
		return g.stateOf("decode-0").State == "slow_start" && g.stateOf("decode-1").State == "slow_start" && len(g.r.Stats().Anyway) == 0
	})
}

// TestFault63OverloadedEngineRests: an engine that refuses a request for being overloaded gets none for a moment, and that is
// all that is held against it.
func TestFault63OverloadedEngineRests(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 3, nil)
	s.cfg.Health.Overload = time.Hour // five seconds at most
	g := start(t, s.cfg, Parts{Planner: firstUsable{}})
	s.setFaults(map[string][]fault{"decode-0": {{Nth: 1, Do: doRefuse}}})
	g.served(3, plainBody)
	if got := g.stateOf("decode-0"); got.State != "overloaded" || got.Ejections["overload"] != 1 || s.c.count("decode-0", "") != 1 {
		t.Errorf("%+v, %d requests", got, s.c.count("decode-0", ""))
	}
}

// TestFault54PairIsAvoided: where transfers between two engines fail, the two are not paired any more, either goes on with others,
// and a handshake brings the pair back.
func TestFault54PairIsAvoided(t *testing.T) {
	s, _, parts := newPlane(t, 1, 2)
	parts.Planner = nil
	s.cfg.Health.Open = 200 * time.Millisecond
	s.cfg.Limits.RetryFloor = new(100)
	g := start(t, s.cfg, parts)
	g.warmed()
	s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Do: doNoKV}}})
	out := func() bool {
		st := g.r.Stats().PairsOut
		return len(st) == 1 && st[0].Decode == "decode-0" && st[0].State != "closed"
	}
	eventually(t, "the pair is out", func() bool { g.served(1, plainBody); return out() })
	for range 5 {
		g.served(1, plainBody)
	}
	if got := g.stateOf("decode-0"); got.State != "up" {
		t.Errorf("the engine itself: %+v", got)
	}
	g.mu.Lock()
	for _, sum := range g.summaries[len(g.summaries)-5:] {
		if sum.Attempts != 1 || sum.Decode != "decode-1" || sum.Prefill != "prefill-0" {
			t.Errorf("summary %+v", sum)
		}
	}
	g.mu.Unlock()
	s.setFaults(nil)
	eventually(t, "the pair is back", func() bool { return !out() })
	g.warmed()
}

// TestFault64ReadinessIsThePolicys: with no prefill engine a model is ready exactly where the policy lets decode serve alone.
func TestFault64ReadinessIsThePolicys(t *testing.T) {
	for when, want := range map[string]bool{"refuse": false, "decode_alone": true} {
		t.Run(when, func(t *testing.T) {
			planner, err := policies.New(policies.Config{Default: policies.Choosing{Split: policies.SplitRule{WhenNoPrefill: when}}})
			if err != nil {
				t.Fatal(err)
			}
			s := newPool(t, connector.NamePull, 1, 1, nil)
			s.cfg.Timeouts.Health = 20 * time.Millisecond
			g := start(t, s.cfg, Parts{Planner: planner})
			eventually(t, "ready", func() bool { return g.r.Stats().Ready })
			s.p[0].srv.CloseClientConnections()
			s.p[0].srv.Close()
			eventually(t, "prefill is down", func() bool { return g.stateOf("prefill-0").State == "down" })
			if st := g.r.Stats(); st.Ready != want || st.Models["tiny"] != want {
				t.Errorf("ready %v, models %v; want %v", st.Ready, st.Models, want)
			}
		})
	}
}

// TestReadyOnceChecked: nothing is ready of which nothing is known.
func TestReadyOnceChecked(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 1, nil)
	r, err := New(s.cfg, Parts{})
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
