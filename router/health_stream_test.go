package router

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestOneProbeAtATime has a request that an engine was given before its circuit opened end without a word about the engine, while
// another request is the engine's probe: the next request goes elsewhere, as the probe is still under way.
func TestOneProbeAtATime(t *testing.T) {
	for _, how := range []string{"its client leaves", "the engine is overloaded"} {
		unhurried(t, how, func(t *testing.T) {
			s := newPool(t, connector.NameNone, 0, 2, nil)
			s.cfg.Health.Open, s.cfg.Health.OpenLongest, s.cfg.Health.PanicPercent = time.Hour, time.Hour, 100
			s.cfg.Health.Overload = time.Nanosecond // the pause that an overloaded engine gets is not what is tested
			older := fault{Nth: 1, Do: doHang}
			if how == "the engine is overloaded" {
				older = fault{Nth: 1, Do: doRefuseLate, N: 1000}
			}
			s.d[0].faults = []fault{older, {Nth: 2, Do: doHang}}
			g := start(t, s.cfg, Parts{Planner: firstUsable{}})
			e := g.r.Debug().Engine("decode-0")
			ask := func() (leave func()) {
				ctx, cancel := context.WithCancel(context.Background())
				t.Cleanup(cancel)
				asked := s.c.count("decode-0", "")
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+pathCompletions, strings.NewReader(plainBody))
				req.Header.Set("Content-Type", "application/json")
				go func() {
					if resp, err := g.client.Do(req); err == nil {
						resp.Body.Close()
					}
				}()
				eventually(t, "the engine is asked", func() bool { return s.c.count("decode-0", "") > asked })
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
			eventually(t, "the older request has ended", func() bool { return e.InFlight() == 1 })
			time.Sleep(time.Second)
			if !e.Probed() {
				t.Error("the probe is not under way any more")
			}
			if r := g.post(pathCompletions, plainBody); r.Status != 200 || s.c.count("decode-0", "") != 2 {
				t.Errorf("status %d, the engine was asked %d times; want 200 from the other", r.Status, s.c.count("decode-0", ""))
			}
		})
	}
}
