package router

import (
	"testing"
	"time"

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
		add   func(t *testing.T, s *pool, g *gateway)
	}{
		{name: "reload", add: func(t *testing.T, s *pool, g *gateway) {
			cfg := s.cfg
			cfg.Limits.InFlight = 2
			apply(t, g, cfg)
		}},
		{name: "undrain", drain: true, add: func(t *testing.T, s *pool, g *gateway) {
			cfg := s.cfg
			cfg.Models = []config.Model{s.cfg.Models[0]}
			cfg.Models[0].Engines = []config.Engine{s.d[0].config(), s.d[1].config()}
			apply(t, g, cfg)
		}},
		{name: "engine back", down: true, add: func(t *testing.T, _ *pool, g *gateway) {
			g.r.Debug().Engine("decode-1").Back(t.Context())
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, connector.NameNone, 0, 2)
				s.cfg.Limits.InFlight = 1
				s.cfg.Timeouts.Queue = 10 * time.Second
				s.cfg.Models[0].Engines[1].Drain = row.drain
				if !row.drain && !row.down {
					s.cfg.Models[0].Engines = s.cfg.Models[0].Engines[:1]
				}
				gate := make(chan struct{})
				s.d[0].hold(gate)
				g := startIn(t, n, s.cfg, parts)
				if row.down {
					time.Sleep(time.Second) // behind the first health check
					g.r.Debug().Engine("decode-1").SetDown()
				}
				replies := make(chan clientReply, 2)
				for range 2 {
					go func() { replies <- g.post(pathCompletions, plainBody) }()
				}
				eventually(t, "one waits", func() bool { return g.r.Stats().Queues[0].Waiting == 1 })
				begun := time.Now()
				row.add(t, s, g)
				eventually(t, "nobody waits", func() bool { return g.r.Stats().Queues[0].Waiting == 0 })
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

func apply(t *testing.T, g *gateway, cfg config.Config) {
	t.Helper()
	if err := g.r.Apply(cfg, g.parts); err != nil {
		t.Fatal(err)
	}
}
