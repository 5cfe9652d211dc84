package router_test

import (
	"strconv"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router/connector"
)

// TestPanicPercent100OpensTheOnlyCircuit has the only engine of a role fail every request. With panic_percent 100 its circuit opens:
// requests are refused at once, with the time of the next probe, and the engine is not asked. By default it is used all the same.
func TestPanicPercent100OpensTheOnlyCircuit(t *testing.T) {
	for _, row := range []struct {
		name, connector string
		percent         int
		reason          string
		opens           bool
	}{
		{"aggregated", connector.NameNone, 100, "no_engine", true},
		{"aggregated, by default", connector.NameNone, 0, "decode_failed", false},
		{"prefill, which the policy insists on", connector.NamePull, 100, "no_prefill", true},
		{"prefill, by default", connector.NamePull, 0, "prefill_failed", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, row.connector, 1, 1)
				planner := routertest.Policy(t, policies.Choosing{Split: policies.SplitRule{OnNoPrefill: "reject"}})
				parts.Planner = planner
				s.Config.Limits.Attempts, s.Config.Health.PanicPercent = 1, row.percent
				engine := "decode-0"
				if row.connector != connector.NameNone {
					engine = "prefill-0"
				} else {
					s.Config.Models[0].Prefill = nil
				}
				g := routertest.StartIn(t, n, s.Config, parts)
				if row.connector != connector.NameNone {
					g.WaitWarm()
				}
				s.SetFaults(map[string][]routertest.Fault{engine: {{Do: routertest.DoError}}})
				for range 5 { // health.failures
					if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 502 {
						t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
					}
				}
				before := s.Cluster.Count(engine, "")
				begun := time.Now()
				r := g.Post(routertest.PathCompletions, routertest.PlainBody)
				if r.Header.Get("X-Pdrouter-Reason") != row.reason || (s.Cluster.Count(engine, "") == before) != row.opens {
					t.Fatalf("status %d, header %v, asked %v: %s", r.Status, r.Header, s.Cluster.Count(engine, "") != before, r.Body)
				}
				if !row.opens {
					s.SetFaults(nil)
					return
				}
				after, err := strconv.Atoi(r.Header.Get("Retry-After"))
				if r.Status != 503 || err != nil || after < 3 || after > 5 || time.Since(begun) > 5*time.Millisecond {
					t.Errorf("status %d, header %v behind %v", r.Status, r.Header, time.Since(begun))
				}
				s.SetFaults(nil)
				time.Sleep(time.Duration(after+1) * time.Second)
				g.MustServe(1, routertest.PlainBody)
			})
		})
	}
}
