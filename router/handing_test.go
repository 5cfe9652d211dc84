package router

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/policies"
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
		{"pull, no params", connector.NamePull, doBare, "0.13.0"},
		{"pull, no remote_request_id", connector.NamePull, doOld, "0.13.0"},
		{"push, no params", connector.NamePush, doBare, "0.24.0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, row.connector, 1, 1)
				parts.Planner = policies.Default()
				var warned warnings
				parts.Log = slog.New(&warned)
				s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: row.do}}})
				g := startIn(t, n, s.cfg, parts)
				eventually(t, "the handshake is over", func() bool { return g.r.Pairs()[0].Reason != "" })
				for range 12 {
					r := g.post(pathCompletions, plainBody)
					if got, _ := text(t, r); r.Status != 200 || got != wholeText || r.Header.Get("X-Pdrouter-Reason") != "no_transfer_params" {
						t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
					}
					time.Sleep(500 * time.Millisecond)
				}
				if got := s.c.count("prefill-0", "prefill"); got != 1 {
					t.Errorf("prefill was asked %d times; want one handshake", got)
				}
				if got := warned.list(); len(got) == 0 || got[len(got)-1] != "prefill engine hands nothing off" || len(got) > 2 {
					t.Errorf("warned %q; want that it hands nothing off, and at most what the handshake has left", got)
				}
				pairs := g.r.Pairs()
				if len(pairs) != 1 || pairs[0].Pairable || pairs[0].Reason != "no_connector" || !strings.Contains(pairs[0].Why, row.why) {
					t.Errorf("pairs %+v", pairs)
				}

				s.setFaults(nil) // it is started anew, with a connector
				g.r.Debug().Engine("prefill-0").Back(t.Context())
				g.warmed()
				g.served(1, plainBody)
				if sum := g.last(13); sum.Reason != "split" {
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
				virtual(t, func(t *testing.T, n *memNet) {
					s, parts := newIn(t, n, connectorName, 1, 1)
					parts.Planner = policies.Default()
					g := startIn(t, n, s.cfg, parts)
					g.warmed()
					if stops { // prefill has but one token to say
						s.p[0].answers(func(h *habit) { h.tokens = 1 })
					}
					s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doBare}}})
					for range 6 {
						r := g.post(pathCompletions, plainBody)
						if r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != "no_transfer_params" {
							t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
						}
					}
					want := 2
					if stops {
						want = 6
					}
					if got := s.c.count("prefill-0", "prefill") - 1; got != want {
						t.Errorf("prefill was asked %d times; want %d", got, want)
					}
					if got := g.r.Stats().Engines[0]; got.State != "up" {
						t.Errorf("prefill is %s", got.State)
					}
					s.setFaults(nil)
					time.Sleep(6 * time.Second)
					g.served(1, plainBody)
					if sum := g.last(7); sum.Reason != "split" {
						t.Errorf("summary %+v", sum)
					}
				})
			})
		}
	}
}
