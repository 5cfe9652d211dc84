package router_test

import (
	"fmt"
	"slices"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// roomy has engines with room for any request that comes while none is unbegun.
type roomy struct{ routertest.FirstUsable }

func (roomy) Costs(string) bool                   { return true }
func (roomy) Objective(string) policies.Objective { return policies.Default().Objective("") }
func (roomy) OnIdle(policies.Request, policies.Fleet, policies.Draw) policies.Choice {
	return policies.Choice{TTFT: .1}
}
func (roomy) Room(_ policies.Request, _ policies.Fleet, _ policies.Draw, unbegun, _ int) bool {
	return unbegun == 0
}
func (roomy) RoomIn(policies.Request, policies.Fleet, policies.Draw) float64 { return 1 }

// TestUnbegunUntilGiven: a request counts as one that engines do not have yet until they do, so others find room beside its long answer. Whatever their
// ends are, they do not count afterwards.
func TestUnbegunUntilGiven(t *testing.T) {
	for _, row := range []struct {
		name, connector, body string
		faults                map[string][]routertest.Fault
		status                int
	}{
		{"alone", connector.NameNone, routertest.StreamBody, nil, 200},
		{"by push", connector.NamePush, routertest.StreamBody, nil, 200},
		{"by pull", connector.NamePull, routertest.PlainBody, nil, 200},
		{"several choices", connector.NamePush, `{"model":"tiny","prompt":"a","n":3,"max_tokens":16}`, nil, 200},
		{"rejected", connector.NameNone, routertest.PlainBody, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReject}}}, 400},
		{"served by another engine", connector.NameNone, routertest.StreamBody, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReset}}}, 200},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // what an engine that hangs may hold is waited for, for ten seconds
			s := routertest.NewPool(t, row.connector, 1, 2, nil)
			for _, e := range s.Engines() {
				e.SetHabit(func(h *routertest.Habit) { h.Parrot = true })
			}
			s.Config.Queue.ByObjective, s.Config.Limits.MaxParallelChoices = true, 8
			g := routertest.Start(t, s.Config, router.Parts{Planner: roomy{}})
			if row.connector != connector.NameNone {
				routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 2 })
				g.WaitIdle()
			}
			queue := func() router.QueueStats { return g.Router.Stats().Queues[0] }
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoHang}}})
			conn := g.Dial(t)
			defer conn.Close()
			if _, err := fmt.Fprint(conn, routertest.RawPost(routertest.PathCompletions, routertest.StreamBody, "Host: a", "Content-Type: application/json",
				fmt.Sprintf("Content-Length: %d", len(routertest.StreamBody)))); err != nil {
				t.Fatal(err)
			}
			routertest.Eventually(t, "engines have the first request", func() bool { return queue().InFlight == 1 && queue().Unbegun == 0 })
			routertest.Eventually(t, "decode-0 has read it, and hangs", func() bool {
				return slices.ContainsFunc(s.Cluster.All(), func(r *routertest.Request) bool { return r.Fault == routertest.DoHang })
			})
			s.SetFaults(row.faults)
			for range 3 {
				if r := g.Post(routertest.PathCompletions, row.body); r.Status != row.status {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
			}
			if q := queue(); q.InFlight == 0 || q.Waited != 0 {
				t.Errorf("%+v; want the first in flight, and that none has waited", q)
			}
			conn.Close() // its client leaves
			g.WaitIdle()
			if q := queue(); q.InFlight != 0 || q.Unbegun != 0 {
				t.Errorf("at the end: %+v", q)
			}
		})
	}
}
