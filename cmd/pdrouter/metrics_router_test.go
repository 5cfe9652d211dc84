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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/metadata"
	"pdrouter/router"
)

func TestRouterMetrics(t *testing.T) {
	yes, no := true, false
	registry := prometheus.NewRegistry()
	registry.MustRegister(newRouterMetrics(func() router.Stats {
		return router.Stats{
			Requests:   3,
			Stranded:   9,
			Engines:    []router.EngineStats{{Name: "p", Up: true, InFlight: 2, Events: &yes}, {Name: "d", Events: &no}, {Name: "e", Up: true}},
			Pairs:      []router.PairStats{{Prefill: "p", Decode: "d", Why: "d is down"}},
			Handshakes: metadata.PairsStats{Ready: 5, Waiting: 6, Done: 7, Failed: [metadata.Failures]uint64{metadata.FailedTimeout: 8}},
		}
	}))
	want := `
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
# HELP pdrouter_pair_handshakes_total Handshakes by how they ended.
# TYPE pdrouter_pair_handshakes_total counter
pdrouter_pair_handshakes_total{outcome="done"} 7
pdrouter_pair_handshakes_total{outcome="failed"} 8
# HELP pdrouter_pair_ready 1 if both engines are up and know each other.
# TYPE pdrouter_pair_ready gauge
pdrouter_pair_ready{decode="d",prefill="p"} 0
# HELP pdrouter_pairs_ready Pairs that have shaken hands.
# TYPE pdrouter_pairs_ready gauge
pdrouter_pairs_ready 5
# HELP pdrouter_pairs_waiting Requests parked until their pair has shaken hands.
# TYPE pdrouter_pairs_waiting gauge
pdrouter_pairs_waiting 6
# HELP pdrouter_requests_in_flight Requests under way.
# TYPE pdrouter_requests_in_flight gauge
pdrouter_requests_in_flight 3
# HELP pdrouter_stranded_total Times KV may have been left with an engine for nobody, until a lease ends or for good.
# TYPE pdrouter_stranded_total counter
pdrouter_stranded_total 9
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
		`pdrouter_engine_up{engine="e"} 1`, `pdrouter_requests_in_flight 0`,
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
