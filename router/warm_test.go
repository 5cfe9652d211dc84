package router_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestPairsShakeHandsBeforeRequests: every pair of engines that can hand over has done so once before a client asks,
// whoever of them comes first, and a request needs nothing more.
func TestPairsShakeHandsBeforeRequests(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		t.Run(connectorName, func(t *testing.T) {
			var s *routertest.Pool
			parts := router.Parts{}
			if connectorName == connector.NameKVPlane {
				s, _, parts = routertest.NewPlane(t, 2, 2)
			} else {
				s = routertest.NewPool(t, connectorName, 2, 2, nil)
			}
			g := routertest.Start(t, s.Config, parts)
			g.WaitWarm()
			prompts := map[string]bool{}
			for _, q := range s.Cluster.All() {
				var b struct{ Prompt string }
				if err := json.Unmarshal([]byte(q.Body), &b); err != nil {
					t.Fatal(err)
				}
				prompts[b.Prompt] = true
			}
			if connectorName == connector.NameKVPlane && len(prompts) != 4 { // else decode might hold the prompt already
				t.Errorf("%d prompts for 4 handshakes", len(prompts))
			}
			for i := range 4 {
				if p, d := s.Cluster.Count("", "prefill"), s.Cluster.Count("", "decode"); p != 4+i || d != 4+i {
					t.Fatalf("%d prefill and %d decode legs before request %d; want %d of each", p, d, i, 4+i)
				}
				if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody)); got != routertest.WholeText || !whole {
					t.Fatalf("text %q, whole %v", got, whole)
				}
			}
			if st := g.Router.Stats().Handshakes; st.Ready != 4 || st.Done != 4 || st.Failed != [handshake.Failures]uint64{} {
				t.Errorf("handshakes %+v", st)
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}

// TestHandshakesAreTriedAgain: what failed is tried again though nobody asks, and /ready says why it failed.
func TestHandshakesAreTriedAgain(t *testing.T) {
	for _, row := range []struct {
		connector, leg, engine string
	}{
		{connector.NamePush, "prefill", "prefill-0"}, {connector.NamePush, "decode", "decode-0"},
		{connector.NameKVPlane, "prefill", "prefill-0"}, {connector.NameKVPlane, "decode", "decode-0"},
	} {
		routertest.RunVirtual(t, row.connector+" "+row.leg, func(t *testing.T) {
			var s *routertest.Pool
			parts := router.Parts{}
			if row.connector == connector.NameKVPlane {
				s, _, parts = routertest.NewPlane(t, 1, 1)
			} else {
				s = routertest.NewPool(t, row.connector, 1, 1, nil)
			}
			s.SetFaults(map[string][]routertest.Fault{row.engine: {{Leg: row.leg, Do: routertest.DoError}}})
			g := routertest.Start(t, s.Config, parts)
			routertest.Eventually(t, "three failures", func() bool { return failedShakes(g) >= 3 })
			ready := func() (got router.Stats) {
				t.Helper()
				w := httptest.NewRecorder()
				g.Router.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
					t.Fatalf("%d %s: %v", w.Code, w.Body, err)
				}
				return got
			}
			if got := ready(); len(got.Pairs) != 1 || got.Pairs[0].Warm || !strings.Contains(got.Pairs[0].Why, row.engine+": status 500") {
				t.Errorf("pairs %+v", got.Pairs)
			}
			s.SetFaults(nil)
			g.WaitWarm()
			if got := ready(); len(got.Pairs) != 0 || got.PairsWarm != 1 || got.PairsTotal != 1 {
				t.Errorf("pairs %+v, %d warm of %d", got.Pairs, got.PairsWarm, got.PairsTotal)
			}
			if row.connector == connector.NameKVPlane { // both engines are told of each failure; stock ones cannot be
				s.CheckNothingHeld(t)
			}
		})
	}
}

// TestHandshakeLimits: no more handshakes run at once than the configuration allows, over all engines and with one.
func TestHandshakeLimits(t *testing.T) {
	for _, row := range []struct{ all, each, most int }{{1, 4, 1}, {8, 1, 2}} {
		s := routertest.NewPool(t, connector.NamePull, 2, 2, nil)
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}, "prefill-1": {{Leg: "prefill", Do: routertest.DoHang}}})
		s.Config.Limits.Handshakes, s.Config.Limits.HandshakesPerEngine = row.all, row.each
		g := routertest.Start(t, s.Config, router.Parts{})
		routertest.Eventually(t, "handshakes are under way", func() bool {
			st := g.Router.Stats().Handshakes
			return st.InFlight == row.most && st.Queued == 4-row.most
		})
		g.Stop()
	}
}

// TestWarmPairsArePreferred: while one pair's handshake hangs, no request waits for it, whatever the policy would choose.
func TestWarmPairsArePreferred(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 2, nil)
	s.SetFaults(map[string][]routertest.Fault{"decode-1": {{Leg: "decode", Do: routertest.DoHang, N: 1}}})
	p := routertest.Policy(t, policies.Choosing{Decode: policies.Role{Policy: "round_robin"}})
	g := routertest.Start(t, s.Config, router.Parts{Planner: p})
	routertest.Eventually(t, "one pair is warm, the other's handshake hangs", func() bool {
		st := g.Router.Stats().Handshakes
		return st.Ready == 1 && st.InFlight == 1
	})
	for i := range 4 {
		if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody)); got != routertest.WholeText || !whole {
			t.Fatalf("text %q, whole %v", got, whole)
		}
		if sum := g.Summary(i + 1); sum.Decode != "decode-0" || sum.Reason != "split" || sum.Attempts != 1 {
			t.Errorf("served by %s as %s at attempt %d; want decode-0, at once", sum.Decode, sum.Reason, sum.Attempts)
		}
	}
	g.Stop()
}

// TestParkedRequestsAreTold: a request that waits for a handshake is told when it fails, and served otherwise.
func TestParkedRequestsAreTold(t *testing.T) {
	s, _, parts := routertest.NewPlane(t, 1, 1)
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuseLate, N: 200}}})
	g := routertest.Start(t, s.Config, parts)
	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if got, _ := routertest.Text(t, r); got != routertest.WholeText || r.Header.Get("X-Pdrouter-Reason") != "no_prefill" {
		t.Errorf("status %d, text %q, header %v", r.Status, got, r.Header)
	}
	if sum := g.Summary(1); sum.Attempts != 2 {
		t.Errorf("summary %+v", sum)
	}
}

// TestRenewedEngineShakesHandsAgain: an engine that was started anew is another one to its peers, once.
func TestRenewedEngineShakesHandsAgain(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 2, 1)
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	before := len(s.Cluster.All())
	records.Publish("decode-0", metadata.Decode, 777, "same")
	g.Router.Renewed("decode-0")
	g.Router.Renewed("decode-0") // as when another rank is published
	g.Router.Renewed("who?")
	g.WaitWarm()
	seen := s.Cluster.All()[before:]
	if len(seen) != 4 {
		t.Errorf("%d legs; want 2 handshakes of 2 legs", len(seen))
	}
	for _, q := range seen {
		if want := map[string]any{"engine": "decode-0", "generation": 777.0}; q.Leg == "prefill" {
			if diff := cmp.Diff(want, q.KV["peer"]); diff != "" {
				t.Errorf("peer of prefill: -want +got\n%s", diff)
			}
		}
	}
	if st := g.Router.Stats().Handshakes; st.Ready != 2 || st.Done != 4 {
		t.Errorf("handshakes %+v; want those of the old run forgotten", st)
	}
	records.Withdraw("prefill-1")
	g.Router.Renewed("prefill-1")
	want := []metadata.PairState{{Model: "tiny", Prefill: "prefill-0", Decode: "decode-0", Pairable: true, Warm: true},
		{Model: "tiny", Prefill: "prefill-1", Decode: "decode-0", Reason: "incomplete_ranks", Why: "no records of prefill-1"}}
	if diff := cmp.Diff(want, g.Router.Stats().Pairs); diff != "" {
		t.Errorf("pairs: -want +got\n%s", diff)
	}
}

// TestFault54LostPrefillGetsNoRequests: an engine that was killed leaves its records until its lease ends. No client
// sees an error, and once it is known to be down, no request begins with it.
func TestFault54LostPrefillGetsNoRequests(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 2, 1)
	s.Config.Timeouts.Health = 20 * time.Millisecond
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	s.Prefill[0].Server.CloseClientConnections()
	s.Prefill[0].Server.Close()
	for range 3 { // the planner takes prefill-0 first
		if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.StreamBody)); got != routertest.WholeText || !whole {
			t.Fatalf("text %q, whole %v", got, whole)
		}
	}
	routertest.Eventually(t, "prefill-0 is down", func() bool { return !g.Router.Stats().Engines[0].Up })
	if _, ok := records.Engine("prefill-0"); !ok {
		t.Fatal("the records are gone")
	}
	if got := g.Router.Stats().Pairs[0]; got.Warm || got.Why != "prefill-0 is down" {
		t.Errorf("pair %+v", got)
	}
	for i := range 5 {
		if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.StreamBody)); got != routertest.WholeText || !whole {
			t.Fatalf("text %q, whole %v", got, whole)
		}
		if sum := g.Summary(4 + i); sum.Attempts != 1 || sum.Prefill != "prefill-1" {
			t.Errorf("summary %+v", sum)
		}
	}
	g.WaitIdle()
	s.CheckNothingHeld(t)
}

func failedShakes(g *routertest.Gateway) (n uint64) {
	for _, k := range g.Router.Stats().Handshakes.Failed {
		n += k
	}
	return n
}
