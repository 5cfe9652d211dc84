package router_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestOneProbeAtATime has a request that an engine was given before its circuit opened end without a word about the engine, while
// another request is the engine's probe: the next request goes elsewhere, as the probe is still under way.
func TestOneProbeAtATime(t *testing.T) {
	for _, how := range []string{"its client leaves", "the engine is overloaded"} {
		routertest.RunVirtual(t, how, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
			s.Config.Health.BaseEjectionTime, s.Config.Health.MaxEjectionTime, s.Config.Health.PanicPercent = time.Hour, time.Hour, 100
			s.Config.Health.Overload = time.Nanosecond // the pause that an overloaded engine gets is not what is tested
			older := routertest.Fault{Nth: 1, Do: routertest.DoHang}
			if how == "the engine is overloaded" {
				older = routertest.Fault{Nth: 1, Do: routertest.DoRefuseLate, N: 1000}
			}
			s.Decode[0].Faults = []routertest.Fault{older, {Nth: 2, Do: routertest.DoHang}}
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			e := g.Router.Debug().Engine("decode-0")
			ask := func() (leave func()) {
				ctx, cancel := context.WithCancel(context.Background())
				t.Cleanup(cancel)
				asked := s.Cluster.Count("decode-0", "")
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(routertest.PlainBody))
				req.Header.Set("Content-Type", "application/json")
				go func() {
					if resp, err := g.Client.Do(req); err == nil {
						resp.Body.Close()
					}
				}()
				routertest.Eventually(t, "the engine is asked", func() bool { return s.Cluster.Count("decode-0", "") > asked })
				return cancel
			}
			leave := ask()
			e.HalfOpen(health.AnswerFailed)
			ask()
			if !e.Probed() {
				t.Fatal("the second request is no probe")
			}
			if how == "its client leaves" {
				leave()
			}
			routertest.Eventually(t, "the older request has ended", func() bool { return e.InFlight() == 1 })
			time.Sleep(time.Second)
			if !e.Probed() {
				t.Error("the probe is not under way any more")
			}
			if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 || s.Cluster.Count("decode-0", "") != 2 {
				t.Errorf("status %d, the engine was asked %d times; want 200 from the other", r.Status, s.Cluster.Count("decode-0", ""))
			}
		})
	}
}
