package gateway

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/redistest"
	"pdrouter/internal/telemetry"
)

// TestCountersAtStart: the counters and histograms of the table that are said to exist at 0 from the start are there before the first
// request, and the others are not. A model that a reload adds has them too.
func TestCountersAtStart(t *testing.T) {
	engine := NewFakeServing(t, "engine", "127.0.0.1:0")
	dir := t.TempDir()
	_, _, public := MakeKey(t, filepath.Join(dir, "keys"))
	key, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	c := &Changeable{T: t, Path: filepath.Join(dir, "pdrouter.yaml")}
	for name, text := range map[string]string{"set.json": fmt.Sprintf(`{"keys":[%s]}`, key), "engines.yaml": "engines: []\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`
listen: {clients: "127.0.0.1:0", agents: "127.0.0.1:0", operations: "127.0.0.1:0"}
models:
- {name: m, engines: [{name: e, url: %q, kv_events: {endpoint: "tcp://127.0.0.1:1"}}], engines_from: {file: engines.yaml}}
policy: {default: {decode: prefix}}
metadata: {store: redis, redis: {address: %q}}
auth: {agents: {issuers: [{issuer: "https://here.example", jwks: {url: set.json}}]}}
tracing: {endpoint: "http://127.0.0.1:1"}
`, engine.URL, redistest.Start(t).Address())
	c.Write(text)
	c = ServeFile(t, c.Path)
	Until(t, "the file of engines was read, and the engine is followed", func() bool {
		all := exposed(t, c.metrics.registry)
		return strings.Contains(all, "pdrouter_source_age_seconds{") && strings.Contains(all, "pdrouter_kv_events_connected{")
	})
	families, err := c.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
	}
	for _, s := range telemetry.Subjects() {
		for _, m := range s.Metrics {
			if m.Kind != telemetry.Gauge && there[m.Name] != (m.AtStart != "") {
				t.Errorf("%s exists at the start: %v; the table says %q", m.Name, there[m.Name], m.AtStart)
			}
		}
	}

	series := []string{
		`pdrouter_requests_total{model="m",outcome="completed",route="/v1/chat/completions",status="200"}`,
		`pdrouter_requests_total{model="m",outcome="failed_before",route="/v1/messages",status="503"}`,
		`pdrouter_requests_total{model="m",outcome="failed_after",route="/v1/completions",status="200"}`,
		`pdrouter_routing_decisions_total{model="m",reason="aggregated"}`,
		`pdrouter_routing_decisions_total{model="m",reason="transfer_timeout"}`,
		`pdrouter_attempts_total{model="m"}`,
		`pdrouter_tokens_total{kind="output",model="m"}`,
		`pdrouter_continuations_total{model="m",result="unsupported"}`,
		`pdrouter_client_transfer_params_total{model="m"}`,
		`pdrouter_request_phase_duration_seconds_count{model="m",phase="prefill"}`,
		`pdrouter_refusals_total{reason="unauthorized",status="401"}`,
		`pdrouter_agent_refusals_total{reason="invalid_token",status="401"}`,
		`pdrouter_admin_requests_total{action="drain",status="403"}`,
		`pdrouter_engine_ejections_total{engine="e",reason="answers"}`,
	}
	got := exposed(t, c.metrics.registry)
	for _, s := range series {
		if !strings.Contains(got, s+" 0\n") {
			t.Errorf("no %s at 0", s)
		}
	}
	before := strings.Count(got, `model="m"`)
	resp, err := http.Post("http://"+c.clients.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	first := `pdrouter_requests_total{model="m",outcome="completed",route="/v1/completions",status="200"} 1` + "\n"
	Until(t, "the request is counted", func() bool { return strings.Contains(exposed(t, c.metrics.registry), first) })

	c.Write(strings.Replace(text, "- {name: m,", fmt.Sprintf("- {name: n, engines: [{name: f, url: %q}]}\n- {name: m,", engine.URL), 1))
	if status, _, mistakes := c.Reload(); status != http.StatusOK {
		t.Fatalf("reload: %d %v", status, mistakes)
	}
	got = exposed(t, c.metrics.registry)
	for _, s := range slices.DeleteFunc(series, func(s string) bool { return !strings.Contains(s, `model="m"`) }) {
		if s = strings.Replace(s, `model="m"`, `model="n"`, 1); !strings.Contains(got, s+" 0\n") {
			t.Errorf("after the reload: no %s at 0", s)
		}
	}
	if before > 300 {
		t.Errorf("a model has %d series before its first request; want at most 300", before)
	}
}
