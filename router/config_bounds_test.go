package router_test

import (
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// TestNoQueue has a model whose place is taken, with limits.queue 0: a second request is refused at once.
func TestNoQueue(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(0)
		hold := make(chan struct{})
		s.Decode[0].HoldUntil(hold)
		g := routertest.StartIn(t, n, s.Config, parts)
		first := make(chan routertest.Reply, 1)
		go func() { first <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
		routertest.Eventually(t, "one has the place", func() bool { return g.Router.Stats().Queues[0].InFlight == 1 })
		begun := time.Now()
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if r.Status != http.StatusServiceUnavailable || r.Header.Get("X-Pdrouter-Reason") != "queue_full" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
		if took := time.Since(begun); took >= 5*time.Millisecond {
			t.Errorf("the refusal took %v", took)
		}
		close(hold)
		if r := <-first; r.Status != http.StatusOK {
			t.Errorf("the one with the place: status %d: %s", r.Status, r.Body)
		}
	})
}

// TestNoRetryBudget has engines fail with limits.retry_percent and limits.retry_floor 0: no request is tried again.
func TestNoRetryBudget(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 2)
		s.Config.Limits.RetryPercent, s.Config.Limits.RetryFloor = new(0), new(0)
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}})
		g := routertest.StartIn(t, n, s.Config, parts)
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if sum := g.Summary(1); r.Status == http.StatusOK || sum.Attempts != 1 {
			t.Errorf("status %d with %d attempts; want an error with 1: %s", r.Status, sum.Attempts, r.Body)
		}
	})
}
