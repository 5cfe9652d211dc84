package router_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// warnings counts what is logged as a warning.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *warnings) WithGroup(string) slog.Handler            { return w }
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.mu.Lock()
		w.all = append(w.all, r.Message)
		w.mu.Unlock()
	}
	return nil
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.all...)
}

// TestFault49PrefillNeverHandsOff has a prefill engine that was started without a connector, or whose vLLM is too old. One handshake shows
// it. Then decode serves alone, the reason says why, and nobody asks prefill again.
func TestFault49PrefillNeverHandsOff(t *testing.T) {
	for _, row := range []struct{ name, connector, do, why string }{
		{"pull, no params", connector.NamePull, routertest.DoBare, "0.13.0"},
		{"pull, no remote_request_id", connector.NamePull, routertest.DoOld, "0.13.0"},
		{"push, no params", connector.NamePush, routertest.DoBare, "0.24.0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, row.connector, 1, 1)
				parts.Planner = routertest.Roles(t)
				var warned warnings
				parts.Log = slog.New(&warned)
				s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: row.do}}})
				g := routertest.StartIn(t, n, s.Config, parts)
				routertest.Eventually(t, "the handshake is over", func() bool { return g.Router.Pairs()[0].Reason != "" })
				for range 12 {
					r := g.Post(routertest.PathCompletions, routertest.PlainBody)
					if got, _ := routertest.Text(t, r); r.Status != 200 || got != routertest.WholeText || r.Header.Get("X-Pdrouter-Reason") != "no_transfer_params" {
						t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
					}
					time.Sleep(500 * time.Millisecond)
				}
				if got := s.Cluster.Count("prefill-0", "prefill"); got != 1 {
					t.Errorf("prefill was asked %d times; want one handshake", got)
				}
				if got := warned.list(); len(got) == 0 || got[len(got)-1] != "prefill engine hands nothing off" || len(got) > 2 {
					t.Errorf("warned %q; want that it hands nothing off, and at most what the handshake has left", got)
				}
				pairs := g.Router.Pairs()
				if len(pairs) != 1 || pairs[0].Pairable || pairs[0].Reason != "no_connector" || !strings.Contains(pairs[0].Why, row.why) {
					t.Errorf("pairs %+v", pairs)
				}

				s.SetFaults(nil) // it is started anew, with a connector
				g.Router.Debug().Engine("prefill-0").Back(t.Context())
				g.WaitWarm()
				g.MustServe(1, routertest.PlainBody)
				if sum := g.Summary(13); sum.Reason != "split" {
					t.Errorf("summary %+v", sum)
				}
			})
		})
	}
}

// TestFault49RouteHandsNothingOff has a prefill engine hand off in handshakes and not for a route: decode serves alone at once, and after
// two such answers without asking prefill, until a while is over. An answer that ended with a stop token is the request's own.
func TestFault49RouteHandsNothingOff(t *testing.T) {
	for _, connectorName := range []string{connector.NamePull, connector.NamePush} {
		for _, stops := range []bool{false, true} {
			t.Run(connectorName, func(t *testing.T) {
				routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
					s, parts := routertest.NewPoolIn(t, n, connectorName, 1, 1)
					parts.Planner = routertest.Roles(t)
					g := routertest.StartIn(t, n, s.Config, parts)
					g.WaitWarm()
					if stops { // prefill has but one token to say
						s.Prefill[0].SetHabit(func(h *routertest.Habit) { h.Tokens = 1 })
					}
					s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBare}}})
					for range 6 {
						r := g.Post(routertest.PathCompletions, routertest.PlainBody)
						if r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != "no_transfer_params" {
							t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
						}
					}
					want := 2
					if stops {
						want = 6
					}
					if got := s.Cluster.Count("prefill-0", "prefill") - 1; got != want {
						t.Errorf("prefill was asked %d times; want %d", got, want)
					}
					if got := g.Router.Stats().Engines[0]; got.State != "up" {
						t.Errorf("prefill is %s", got.State)
					}
					s.SetFaults(nil)
					time.Sleep(6 * time.Second)
					g.MustServe(1, routertest.PlainBody)
					if sum := g.Summary(7); sum.Reason != "split" {
						t.Errorf("summary %+v", sum)
					}
				})
			})
		}
	}
}
