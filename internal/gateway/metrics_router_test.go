package gateway

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/telemetry"
	"pdrouter/metadata"
	metahandshake "pdrouter/metadata/handshake"
	"pdrouter/router"
)

func TestRouterMetrics(t *testing.T) {
	yes, no := true, false
	got := collected(t, func(out *telemetry.Scrape) {
		collectRouter(out, router.Stats{
			Requests: 3,
			Leaked:   9,
			Foreign:  12, Background: 13, BodyBytes: 13,
			Engines: []router.EngineStats{{Name: "p", Up: true, InFlight: 2, Events: &yes, State: "up"}, {Name: "d", Events: &no, State: "down"}, {Name: "e", Up: true, State: "up"}},
			Pairs:   []metadata.PairState{{Prefill: "p", Decode: "d", Reason: "heads", Why: "d is down"}, {Prefill: "p", Decode: "e", Pairable: true, Warm: true}},
			Handshakes: metahandshake.Stats{Waiting: 6, Queued: 10, InFlight: 11, Done: 7,
				Failed: [metahandshake.Failures]uint64{metahandshake.FailedTimeout: 8, metahandshake.FailedForgotten: 1},
				Took:   metahandshake.Took{Count: 16, Sum: 1500 * time.Millisecond, Up: [...]uint64{3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12}}},
		})
	})
	want := `# TYPE pdrouter_background_panics_total counter
pdrouter_background_panics_total 0
# TYPE pdrouter_background_responses gauge
pdrouter_background_responses 13
# TYPE pdrouter_engine_events gauge
pdrouter_engine_events{engine="d"} 0
pdrouter_engine_events{engine="p"} 1
# TYPE pdrouter_engine_prompt_ratio gauge
pdrouter_engine_prompt_ratio{engine="d"} 0
pdrouter_engine_prompt_ratio{engine="e"} 0
pdrouter_engine_prompt_ratio{engine="p"} 0
# TYPE pdrouter_engine_requests_in_flight gauge
pdrouter_engine_requests_in_flight{engine="d"} 0
pdrouter_engine_requests_in_flight{engine="e"} 0
pdrouter_engine_requests_in_flight{engine="p"} 2
# TYPE pdrouter_engine_share gauge
pdrouter_engine_share{engine="d"} 0
pdrouter_engine_share{engine="e"} 0
pdrouter_engine_share{engine="p"} 0
# TYPE pdrouter_engine_state gauge
pdrouter_engine_state{engine="d",state="down"} 1
pdrouter_engine_state{engine="e",state="up"} 1
pdrouter_engine_state{engine="p",state="up"} 1
# TYPE pdrouter_engine_streams gauge
pdrouter_engine_streams{engine="d"} 0
pdrouter_engine_streams{engine="e"} 0
pdrouter_engine_streams{engine="p"} 0
# TYPE pdrouter_engine_up gauge
pdrouter_engine_up{engine="d"} 0
pdrouter_engine_up{engine="e"} 1
pdrouter_engine_up{engine="p"} 1
# TYPE pdrouter_engine_wait_seconds gauge
pdrouter_engine_wait_seconds{engine="d"} 0
pdrouter_engine_wait_seconds{engine="e"} 0
pdrouter_engine_wait_seconds{engine="p"} 0
# TYPE pdrouter_foreign_reports_total counter
pdrouter_foreign_reports_total 12
# TYPE pdrouter_kv_leaks_total counter
pdrouter_kv_leaks_total 9
# TYPE pdrouter_pair_handshake_seconds histogram
pdrouter_pair_handshake_seconds_bucket{le="0.005"} 3
pdrouter_pair_handshake_seconds_bucket{le="0.01"} 4
pdrouter_pair_handshake_seconds_bucket{le="0.025"} 4
pdrouter_pair_handshake_seconds_bucket{le="0.05"} 5
pdrouter_pair_handshake_seconds_bucket{le="0.1"} 6
pdrouter_pair_handshake_seconds_bucket{le="0.25"} 7
pdrouter_pair_handshake_seconds_bucket{le="0.5"} 8
pdrouter_pair_handshake_seconds_bucket{le="1"} 9
pdrouter_pair_handshake_seconds_bucket{le="2.5"} 10
pdrouter_pair_handshake_seconds_bucket{le="10"} 11
pdrouter_pair_handshake_seconds_bucket{le="30"} 12
pdrouter_pair_handshake_seconds_bucket{le="+Inf"} 16
pdrouter_pair_handshake_seconds_sum 1.5
pdrouter_pair_handshake_seconds_count 16
# TYPE pdrouter_pair_handshakes_in_flight gauge
pdrouter_pair_handshakes_in_flight 11
# TYPE pdrouter_pair_handshakes_queued gauge
pdrouter_pair_handshakes_queued 10
# TYPE pdrouter_pair_handshakes_total counter
pdrouter_pair_handshakes_total{outcome="busy"} 0
pdrouter_pair_handshakes_total{outcome="closed"} 0
pdrouter_pair_handshakes_total{outcome="done"} 7
pdrouter_pair_handshakes_total{outcome="other"} 0
pdrouter_pair_handshakes_total{outcome="refused"} 0
pdrouter_pair_handshakes_total{outcome="restarted"} 1
pdrouter_pair_handshakes_total{outcome="timeout"} 8
pdrouter_pair_handshakes_total{outcome="unpairable"} 0
pdrouter_pair_handshakes_total{outcome="unreachable"} 0
# TYPE pdrouter_pair_ready gauge
pdrouter_pair_ready{decode="d",prefill="p"} 0
pdrouter_pair_ready{decode="e",prefill="p"} 1
# TYPE pdrouter_pairs_ready gauge
pdrouter_pairs_ready 1
# TYPE pdrouter_pairs_waiting gauge
pdrouter_pairs_waiting 6
# TYPE pdrouter_request_body_bytes gauge
pdrouter_request_body_bytes 13
# TYPE pdrouter_requests_in_flight gauge
pdrouter_requests_in_flight 3
# TYPE pdrouter_unpairable gauge
pdrouter_unpairable{decode="d",prefill="p",reason="heads"} 1
`
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("got(-) want(+):\n%s", d)
	}
}

// TestMetricsNameNothingOfAClient sends a client's own words wherever a request has room for them: no series may carry them.
func TestMetricsNameNothingOfAClient(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"hi"}],"model":"intruder","usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	}))
	t.Cleanup(engine.Close) // after the gateway has ended
	path := filepath.Join(t.TempDir(), "pdrouter.yaml")
	config := `
listen: {clients: "127.0.0.1:0", operations: "127.0.0.1:0"}
models: [{name: m, connector: none, engines: [{name: e, url: "` + engine.URL + `"}]}]
`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := New(Load(t, path), slog.New(slog.DiscardHandler), Options{})
	if err != nil {
		t.Fatal(err)
	}
	Running(t, g)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method string, to net.Listener, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+to.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", "intruder")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	for _, q := range []struct {
		path, body string
		want       int
	}{
		{"/v1/completions", `{"model":"m","prompt":"x","user":"intruder","kv_transfer_params":{"intruder":1}}`, 200},
		{"/v1/completions?intruder=1", `{"model":"m","prompt":"x"}`, 200},
		{"/v1/completions", `{"model":"intruder","prompt":"x"}`, 404},
		{"/v1/completions", `{"model":"intruder"`, 400},
		{"/v1/intruder", `{"model":"m","prompt":"x"}`, 404},
	} {
		if got, body := ask(http.MethodPost, g.clients, q.path, q.body); got != q.want {
			t.Errorf("%s %s: status %d; want %d: %s", q.path, q.body, got, q.want, body)
		}
	}
	_, page := ask(http.MethodGet, g.operations, "/metrics", "")
	if strings.Contains(page, "intruder") {
		t.Errorf("a client's words are in the metrics:\n%s", page)
	}
	for _, want := range []string{
		`pdrouter_requests_total{model="m",outcome="completed",route="/v1/completions",status="200"} 2`,
		`pdrouter_engine_up{engine="e"} 1`, `pdrouter_requests_in_flight 0`, `pdrouter_engine_share{engine="e"} 1`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
}
