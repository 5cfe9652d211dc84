package router_test

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestStages: what a request's time went into is told apart, also where an attempt has failed before, and adds up to the time to the first token.
func TestStages(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NamePull, 1, 2)
		s.Prefill[0].Faults = []routertest.Fault{{Leg: "prefill", Do: routertest.DoSlow, N: 300}}
		s.Decode[0].Faults = []routertest.Fault{{Leg: "decode", Do: routertest.DoErrorLate, N: 200}}
		g := routertest.StartIn(t, n, s.Config, parts)
		r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":3,"stream":true}`)
		if r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		sum := g.Summary(1)
		got := sum.Phases.Stages()
		for stage, want := range map[report.Stage]time.Duration{report.StageRetry: 500 * time.Millisecond, report.StagePrefill: 300 * time.Millisecond, report.StageQueue: -1} {
			if got[stage].Round(time.Millisecond) != want && got[stage] != want {
				t.Errorf("%v took %v; want %v", stage, got[stage], want)
			}
		}
		var shown report.Shown
		w := httptest.NewRecorder()
		g.Router.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/requests?id="+sum.RequestID, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
		all := 0.0
		for name, took := range shown.Stages {
			if name != "stream" {
				all += took
			}
		}
		if ttft := sum.Phases.FirstToken.Seconds(); all < ttft-1e-9 || all > ttft+1e-9 {
			t.Errorf("the stages take %v s, the first token %v s: %v", all, ttft, shown.Stages)
		}
	})
}
