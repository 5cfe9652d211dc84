package gateway

import (
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pdrouter/internal/otlptest"
	"pdrouter/internal/tracing"
)

// TestTracing: a gateway with the section tracing exports the trace of a request, counts its spans, and has the trace as exemplar of
// the request's latency.
func TestTracing(t *testing.T) {
	to, engine := otlptest.Start(t), NewFakeServing(t, "engine", "127.0.0.1:0")
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf("listen: {clients: 127.0.0.1:0, operations: 127.0.0.1:0}\nmodels: [{name: m, engines: [{name: e, url: %q}]}]\ntracing: {endpoint: %q, sample_ratio: 1}\n", engine.URL, to.GRPC)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := New(Load(t, path), slog.New(slog.NewTextHandler(t.Output(), nil)), Options{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	Running(t, g)
	a, err := http.Post("http://"+g.Clients().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, a.Body)
	a.Body.Close()
	Until(t, "the trace is exported", func() bool { return g.tracing.Stats() == tracing.Stats{Exported: 3} })
	id := hex.EncodeToString(to.Spans()[0].TraceId)
	if got := to.Resource(); got["service.name"] != "pdrouter" || got["service.version"] != "v1" {
		t.Errorf("resource %v", got)
	}
	scrape := func(accept string) string {
		q, _ := http.NewRequest(http.MethodGet, "http://"+g.Operations().String()+"/metrics", nil)
		q.Header.Set("Accept", accept)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return string(b)
	}
	plain, open := scrape("text/plain"), scrape("application/openmetrics-text; version=1.0.0")
	if !strings.Contains(plain, `pdrouter_trace_spans_total{result="exported"} 3`) || strings.Contains(plain, id) {
		t.Errorf("metrics %s", plain)
	}
	for _, name := range []string{"pdrouter_time_to_first_token_seconds", "pdrouter_request_phase_duration_seconds"} {
		if !regexp.MustCompile(name + `_bucket\{[^}]*\} \d+ # \{trace_id="` + id + `"\}`).MatchString(open) {
			t.Errorf("%s has no exemplar %s", name, id)
		}
	}
}
