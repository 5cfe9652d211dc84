package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestStranded leaves KV with an engine in every way in which that cannot be helped, behind the request's end too: each
// is counted once.
func TestStranded(t *testing.T) {
	for _, row := range []struct {
		name      string
		connector string
		faults    map[string][]routertest.Fault
		leaves    bool // the client, in mid-prefill
	}{
		{"push, a prefill leg that runs on fails", connector.NamePush, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoResetLate, N: 200}}}, true},
		{"push, a prefill leg that runs on is late", connector.NamePush, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}}, true},
		{"push, prefill cannot be asked again", connector.NamePush, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoDie}}}, false},
		{"pull, nobody takes what prefill holds", connector.NamePull, map[string][]routertest.Fault{
			"decode-0": {{Leg: "decode", Do: routertest.DoRefuse}}, "decode-1": {{Leg: "decode", Do: routertest.DoRefuse}}}, false},
		{"pull, the time is over while decode reads", connector.NamePull, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoHang}}}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 2, nil)
			s.Config.Limits.Attempts = 1
			s.Config.Timeouts.RequestTotal, s.Config.Timeouts.Prefill, s.Config.Timeouts.Cleanup = 2*time.Second, 2*time.Second, time.Second
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			g.WaitWarm()
			s.SetFaults(row.faults)
			prefills, decodes := s.Cluster.Count("", "prefill"), s.Cluster.Count("", "decode")
			if row.leaves {
				leave(t, g, routertest.PlainBody, func() bool {
					return s.Cluster.Count("", "prefill") > prefills && s.Cluster.Count("", "decode") > decodes
				})
			} else if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status < 500 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			g.Summary(1)
			routertest.Eventually(t, "what is left is counted", func() bool { return g.Router.Stats().Leaked > 0 })
			g.WaitIdle()
			if n := g.Router.Stats().Leaked; n != 1 {
				t.Errorf("counted %d times; want 1", n)
			}
		})
	}
}

// TestFault66ShutdownBehindLeaving stops the router right behind a client that left in mid-prefill: the prefill leg gets
// its time to write what decode waits for, and what it cannot is counted.
func TestFault66ShutdownBehindLeaving(t *testing.T) {
	for _, row := range []struct {
		name    string
		prefill int // milliseconds
		drain   time.Duration
		leaked  uint64
	}{
		{"in time", 500, routertest.Patience, 0},
		{"not in time", 3_600_000, 300 * time.Millisecond, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
			s.Config.Timeouts.Drain = row.drain
			g := routertest.Start(t, s.Config, router.Parts{})
			g.WaitWarm()
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: row.prefill}}})
			p, d := s.Cluster.Count("", "prefill"), s.Cluster.Count("", "decode")
			leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("", "prefill") > p && s.Cluster.Count("", "decode") > d })
			g.Stop()
			g.Summary(1)
			if n := g.Router.Stats().Leaked; n != row.leaked {
				t.Errorf("%d leaked; want %d", n, row.leaked)
			}
			if row.leaked == 0 {
				s.CheckNothingHeld(t)
			}
		})
	}
}
