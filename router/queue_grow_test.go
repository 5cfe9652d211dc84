package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestQueueNoticesPlaces has a request wait while every place is taken. It gets a place as soon as places are added, not when one is
// given back or its time in the queue is over.
func TestQueueNoticesPlaces(t *testing.T) {
	for _, row := range []struct {
		name  string
		drain bool // the second engine is drained at first
		down  bool // the second engine is down at first
		add   func(t *testing.T, s *routertest.Pool, g *routertest.Gateway)
	}{
		{name: "reload", add: func(t *testing.T, s *routertest.Pool, g *routertest.Gateway) {
			cfg := s.Config
			cfg.Limits.MaxConcurrentRequests = 2
			apply(t, g, cfg)
		}},
		{name: "undrain", drain: true, add: func(t *testing.T, s *routertest.Pool, g *routertest.Gateway) {
			cfg := s.Config
			cfg.Models = []config.Model{s.Config.Models[0]}
			cfg.Models[0].Engines = []config.Engine{s.Decode[0].Config(), s.Decode[1].Config()}
			apply(t, g, cfg)
		}},
		{name: "engine back", down: true, add: func(t *testing.T, _ *routertest.Pool, g *routertest.Gateway) {
			g.Router.Debug().Engine("decode-1").Back(t.Context())
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 2)
				s.Config.Limits.MaxConcurrentRequests = 1
				s.Config.Timeouts.Queue = 10 * time.Second
				s.Config.Models[0].Engines[1].Drain = row.drain
				if !row.drain && !row.down {
					s.Config.Models[0].Engines = s.Config.Models[0].Engines[:1]
				}
				gate := make(chan struct{})
				s.Decode[0].HoldUntil(gate)
				g := routertest.StartIn(t, n, s.Config, parts)
				if row.down {
					time.Sleep(time.Second) // behind the first health check
					g.Router.Debug().Engine("decode-1").SetDown()
				}
				replies := make(chan routertest.Reply, 2)
				for range 2 {
					go func() { replies <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
				}
				routertest.Eventually(t, "one waits", func() bool { return g.Router.Stats().Queues[0].Waiting == 1 })
				begun := time.Now()
				row.add(t, s, g)
				routertest.Eventually(t, "nobody waits", func() bool { return g.Router.Stats().Queues[0].Waiting == 0 })
				if took := time.Since(begun); took > 100*time.Millisecond {
					t.Errorf("the place was given %v after it was added", took)
				}
				close(gate)
				for range 2 {
					if r := <-replies; r.Status != 200 {
						t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
					}
				}
			})
		})
	}
}

func apply(t *testing.T, g *routertest.Gateway, cfg config.Config) {
	t.Helper()
	if err := g.Router.Apply(cfg, g.Parts); err != nil {
		t.Fatal(err)
	}
}
