package router

import (
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/limits"
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
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, connector.NameNone, 0, 1)
				s.cfg.Models[0].InFlight, s.cfg.Limits.Queue = 1, new(1)
				parts.Clients, parts.Limits = fakeClients{}, newCounted(row.limits)
				gate := make(chan struct{})
				s.d[0].hold(gate)
				g := startIn(t, n, s.cfg, parts)
				held := make(chan clientReply, 2)
				for range 2 { // one has the place, one waits for it
					go func() { held <- g.post(pathCompletions, plainBody, "Authorization", good) }()
				}
				eventually(t, "one waits", func() bool { return g.r.Stats().Queues[0].Waiting == 1 })
				begun := time.Now()
				for range 8 {
					r := g.post(pathCompletions, plainBody, "Authorization", good)
					if errorOf(t, r.Body); r.Status != row.status || r.Header.Get("X-Pdrouter-Reason") != row.reason ||
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
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 1)
		s.cfg.Models[0].InFlight, s.cfg.Limits.Queue = 1, new(8)
		s.cfg.Timeouts.Queue = 10 * time.Second
		s.setFaults(map[string][]fault{"decode-0": {{Do: doSlow, N: 15_000}}})
		g := startIn(t, n, s.cfg, parts)
		begun := time.Now()
		type ended struct {
			after  time.Duration
			status int
		}
		ends := make(chan ended, 3)
		ask := func() {
			r := g.post(pathCompletions, plainBody)
			ends <- ended{time.Since(begun), r.Status}
		}
		go ask() // is served for 15 s
		eventually(t, "the place is taken", func() bool { return s.d[0].underWay() == 1 })
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
