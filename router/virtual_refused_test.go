package router_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// TestFault63RefusedAtOnce refuses for a full queue and for a tenant's limits: 503 and 429 with when to come back, less than 5 ms of
// virtual time behind the request.
func TestFault63RefusedAtOnce(t *testing.T) {
	for _, row := range []struct {
		name, reason string
		status       int
		limits       limits.Limits
	}{
		{"the queue is full", "queue_full", 503, limits.Limits{Requests: 100}},
		{"requests", "over_limit_requests", 429, limits.Limits{Requests: 2}},
		{"tokens", "over_limit_tokens", 429, limits.Limits{Tokens: 40}},
		{"at once", "over_limit_concurrent", 429, limits.Limits{Concurrent: 2}},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
				s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(1)
				parts.Clients, parts.Limiter = routertest.Clients{}, newCounted(row.limits)
				gate := make(chan struct{})
				s.Decode[0].HoldUntil(gate)
				g := routertest.StartIn(t, n, s.Config, parts)
				held := make(chan routertest.Reply, 2)
				for range 2 { // one has the place, one waits for it
					go func() { held <- g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", good) }()
				}
				routertest.Eventually(t, "one waits", func() bool { return g.Router.Stats().Queues[0].Waiting == 1 })
				begun := time.Now()
				for range 8 {
					r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", good)
					if routertest.ErrorOf(t, r.Body); r.Status != row.status || r.Header.Get("X-Pdrouter-Reason") != row.reason ||
						r.Header.Get("Retry-After") == "" || r.Header.Get("Retry-After-Ms") == "" {
						t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
					}
				}
				if took := time.Since(begun); took >= 5*time.Millisecond {
					t.Errorf("8 refusals took %v", took)
				}
				close(gate)
				for range 2 {
					if r := <-held; r.Status != http.StatusOK {
						t.Errorf("of those that were admitted: status %d: %s", r.Status, r.Body)
					}
				}
			})
		})
	}
}

// TestFault63QueueTimeoutIsExact has a request wait for a place that does not come: it is told so when its time is over, and whoever
// gets a place that comes free has it at once.
func TestFault63QueueTimeoutIsExact(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(8)
		s.Config.Timeouts.Queue = 10 * time.Second
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 15_000}}})
		g := routertest.StartIn(t, n, s.Config, parts)
		begun := time.Now()
		type ended struct {
			after  time.Duration
			status int
		}
		ends := make(chan ended, 3)
		ask := func() {
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			ends <- ended{time.Since(begun), r.Status}
		}
		go ask() // is served for 15 s
		routertest.Eventually(t, "the place is taken", func() bool { return s.Decode[0].UnderWay() == 1 })
		at := time.Since(begun) // what eventually has slept
		go ask()                // waits 10 s
		time.Sleep(8 * time.Second)
		go ask() // waits 7 s, and is served for 15 s
		for i, want := range []ended{{at + 10*time.Second, 503}, {15 * time.Second, 200}, {30 * time.Second, 200}} {
			if got := <-ends; got.status != want.status || got.after < want.after || got.after >= want.after+5*time.Millisecond {
				t.Errorf("request %d ended as %d behind %v; want %d behind %v", i, got.status, got.after, want.status, want.after)
			}
		}
	})
}

// TestRetryAfterOfQueue has requests of 3 s each take one place. Once one has ended, a request that finds the queue full is told that two others and
// itself come first: 9 s.
func TestRetryAfterOfQueue(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(2)
		s.Config.Timeouts.Queue = 30 * time.Second
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 3000}}})
		g := routertest.StartIn(t, n, s.Config, parts)
		ask := func() routertest.Reply { return g.Post(routertest.PathCompletions, routertest.PlainBody) }
		if r := ask(); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { ask() })
		}
		routertest.Eventually(t, "two wait", func() bool { return g.Router.Stats().Queues[0].Waiting == 2 })
		r := ask()
		if after := r.Header.Get("Retry-After"); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "queue_full" || after != "9" && after != "10" ||
			r.Header.Get("Retry-After-Ms") != after+"000" {
			t.Errorf("status %d, header %v; want 503 queue_full, Retry-After 9 or 10", r.Status, r.Header)
		}
		group.Wait()
	})
}
