package router_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestQueueOrder has requests of two tenants, one of them with sessions, wait for one place, and says in what order they are served. Service counts from
// the first request that waits on, so that the session of that one is not known.
func TestQueueOrder(t *testing.T) {
	for _, row := range []struct{ order, want, last string }{
		{config.OrderFIFO, "first a b c d light", "4 requests waited before it; 4 others got a place meanwhile"},
		{config.OrderFair, "first a light b d c", "4 requests waited before it, 0 of them of its tenant; that had received 0 tokens lately, its session 0; 1 others got a place meanwhile"},
	} {
		t.Run(row.order, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
			s.Config.Models[0].MaxConcurrentRequests = 1
			s.Config.Queue.Order = row.order
			gate := make(chan struct{})
			s.Decode[0].HoldUntil(gate)
			g := routertest.Start(t, s.Config, router.Parts{Clients: tenants{}})
			body := func(name string) string { return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":16}`, name) }
			var wg sync.WaitGroup
			wg.Go(func() { g.Post(routertest.PathCompletions, body("first"), "Authorization", "heavy") })
			routertest.Eventually(t, "the place is taken", func() bool { return s.Decode[0].UnderWay() == 1 })
			for i, c := range [][3]string{{"a", "heavy", "1"}, {"b", "heavy", "1"}, {"c", "heavy", "1"}, {"d", "heavy", "2"}, {"light", "light", ""}} {
				wg.Go(func() { g.Post(routertest.PathCompletions, body(c[0]), "Authorization", c[1], "X-Session-Id", c[2]) })
				routertest.Eventually(t, "it waits", func() bool { return g.Router.Stats().Queues[0].Waiting == i+1 })
			}
			close(gate)
			wg.Wait()
			var got []string
			for _, q := range s.Cluster.All() {
				got = append(got, q.Prompt())
			}
			if strings.Join(got, " ") != row.want {
				t.Errorf("served %v; want %s", got, row.want)
			}
			g.WaitIdle()
			var waited []string
			for i := range 6 {
				if sum := g.Summary(i + 1); sum.Waited != nil {
					waited = append(waited, *sum.Waited)
				}
			}
			if len(waited) != 5 || !slices.Contains(waited, row.last) {
				t.Errorf("why requests waited:\n%s\nwant five, one of them\n%s", strings.Join(waited, "\n"), row.last)
			}
		})
	}
}

// TestQueueChargesWhatWasUsed has tenant a send a prompt that is estimated at 10,000 tokens, and b one of 1,000. The engine counts 7 of each. So when both
// wait again, a has received as good as nothing, and goes first, as it came first.
func TestQueueChargesWhatWasUsed(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Models[0].MaxConcurrentRequests = 1
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 3000}}})
		parts.Clients = tenants{}
		g := routertest.StartIn(t, n, s.Config, parts)
		var wg sync.WaitGroup
		var got []string // in the order in which they end
		var mu sync.Mutex
		ask := func(tenant, name string, tokens int) {
			wg.Go(func() {
				g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":16}`, strings.Repeat("word", tokens)), "Authorization", tenant)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, name)
			})
			time.Sleep(100 * time.Millisecond)
		}
		ask("z", "first", 1)
		ask("a", "a long", 10_000) // from 3 s to 6 s
		ask("b", "b short", 1000)  // from 6 s to 9 s
		time.Sleep(7 * time.Second)
		ask("a", "a again", 1)
		ask("b", "b again", 1)
		wg.Wait()
		if want := "first, a long, b short, a again, b again"; strings.Join(got, ", ") != want {
			t.Errorf("served %v; want %s", got, want)
		}
	})
}
