package main

import (
	"context"
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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/metadata"
	metahandshake "pdrouter/metadata/handshake"
	"pdrouter/router"
)

func TestRouterMetrics(t *testing.T) {
	yes, no := true, false
	registry := prometheus.NewRegistry()
	registry.MustRegister(newRouterMetrics(func() router.Stats {
		return router.Stats{
			Requests: 3,
			Leaked:   9,
			Foreign:  12, Background: 13, BodyBytes: 13,
			Engines: []router.EngineStats{{Name: "p", Up: true, InFlight: 2, Events: &yes}, {Name: "d", Events: &no}, {Name: "e", Up: true}},
			Pairs:   []metadata.PairState{{Prefill: "p", Decode: "d", Reason: "heads", Why: "d is down"}, {Prefill: "p", Decode: "e", Pairable: true, Warm: true}},
			Handshakes: metahandshake.Stats{Waiting: 6, Queued: 10, InFlight: 11, Done: 7,
				Failed: [metahandshake.Failures]uint64{metahandshake.FailedTimeout: 8, metahandshake.FailedForgotten: 1},
				Took:   metahandshake.Took{Count: 16, Sum: 1500 * time.Millisecond, Up: [...]uint64{3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12}}},
		}
	}))
	want := `
# HELP pdrouter_background_panics_total Panics of what runs beside requests; each is a fault of pdrouter, and was begun anew.
# TYPE pdrouter_background_panics_total counter
pdrouter_background_panics_total 0
# HELP pdrouter_background_responses Background responses that count against their callers' limits.
# TYPE pdrouter_background_responses gauge
pdrouter_background_responses 13
# HELP pdrouter_engine_events 1 while the engine's event stream is open; only engines with control routes.
# TYPE pdrouter_engine_events gauge
pdrouter_engine_events{engine="d"} 0
pdrouter_engine_events{engine="p"} 1
# HELP pdrouter_engine_requests_in_flight Legs that the engine works on.
# TYPE pdrouter_engine_requests_in_flight gauge
pdrouter_engine_requests_in_flight{engine="d"} 0
pdrouter_engine_requests_in_flight{engine="e"} 0
pdrouter_engine_requests_in_flight{engine="p"} 2
# HELP pdrouter_engine_up 1 unless the engine is down.
# TYPE pdrouter_engine_up gauge
pdrouter_engine_up{engine="d"} 0
pdrouter_engine_up{engine="e"} 1
pdrouter_engine_up{engine="p"} 1
# HELP pdrouter_foreign_reports_total Reports of transfers that were not their sender's to make; none is believed.
# TYPE pdrouter_foreign_reports_total counter
pdrouter_foreign_reports_total 12
# HELP pdrouter_kv_leaks_total Requests that left KV blocks with a stock engine, until the lease ends or until the engine restarts.
# TYPE pdrouter_kv_leaks_total counter
pdrouter_kv_leaks_total 9
# HELP pdrouter_pair_handshake_seconds Time of each handshake that began, however it ended.
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
# HELP pdrouter_pair_handshakes_in_flight Handshakes under way.
# TYPE pdrouter_pair_handshakes_in_flight gauge
pdrouter_pair_handshakes_in_flight 11
# HELP pdrouter_pair_handshakes_queued Handshakes that wait for their turn.
# TYPE pdrouter_pair_handshakes_queued gauge
pdrouter_pair_handshakes_queued 10
# HELP pdrouter_pair_handshakes_total Handshakes by how they ended.
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
# HELP pdrouter_pair_ready 1 if both engines are up and know each other.
# TYPE pdrouter_pair_ready gauge
pdrouter_pair_ready{decode="d",prefill="p"} 0
pdrouter_pair_ready{decode="e",prefill="p"} 1
# HELP pdrouter_pairs_ready Pairs whose engines are both up and know each other.
# TYPE pdrouter_pairs_ready gauge
pdrouter_pairs_ready 1
# HELP pdrouter_pairs_waiting Requests parked until their pair has shaken hands.
# TYPE pdrouter_pairs_waiting gauge
pdrouter_pairs_waiting 6
# HELP pdrouter_request_body_bytes Bytes of memory that request bodies occupy; limits.body_memory bounds them.
# TYPE pdrouter_request_body_bytes gauge
pdrouter_request_body_bytes 13
# HELP pdrouter_requests_in_flight Requests under way.
# TYPE pdrouter_requests_in_flight gauge
pdrouter_requests_in_flight 3
# HELP pdrouter_unpairable 1 for each pair that cannot exchange KV blocks, and why.
# TYPE pdrouter_unpairable gauge
pdrouter_unpairable{decode="d",prefill="p",reason="heads"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// TestMetricsNameNothingOfAClient sends a client's own words wherever a request has room for them: no series may carry them.
func TestMetricsNameNothingOfAClient(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"hi"}],"model":"intruder","usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	}))
	defer engine.Close()
	path := filepath.Join(t.TempDir(), "pdrouter.yaml")
	config := `
listen: {clients: "127.0.0.1:0", operations: "127.0.0.1:0"}
models: [{name: m, connector: none, engines: [{name: e, url: "` + engine.URL + `"}]}]
`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := loadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
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
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
