package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/auth"
	"pdrouter/internal/telemetry"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
)

func TestMetadataMetrics(t *testing.T) {
	got := collected(t, func(out *telemetry.Scrape) {
		collectMetadata(out, cache.Stats{Engines: 1, Behind: true, Age: 1500 * time.Millisecond, Reads: 99, Records: 2, Watches: 3, Deaf: 4, Failures: 5},
			routes.WatchStats{Open: 6, Lost: 7, Slow: 8})
	})
	want := `# TYPE pdrouter_metadata_age_seconds gauge
pdrouter_metadata_age_seconds 1.5
# TYPE pdrouter_metadata_behind gauge
pdrouter_metadata_behind 1
# TYPE pdrouter_metadata_engines gauge
pdrouter_metadata_engines 1
# TYPE pdrouter_metadata_read_failures_total counter
pdrouter_metadata_read_failures_total 5
# TYPE pdrouter_metadata_records_read_total counter
pdrouter_metadata_records_read_total 2
# TYPE pdrouter_metadata_subscription_failures_total counter
pdrouter_metadata_subscription_failures_total 4
# TYPE pdrouter_metadata_subscriptions_total counter
pdrouter_metadata_subscriptions_total 3
# TYPE pdrouter_metadata_watch_syncs_total counter
pdrouter_metadata_watch_syncs_total{reason="slow_reader"} 8
pdrouter_metadata_watch_syncs_total{reason="store"} 7
# TYPE pdrouter_metadata_watches gauge
pdrouter_metadata_watches 6
`
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("got(-) want(+):\n%s", d)
	}
}

// TestSecurityMetrics: a gateway shows how its issuers' key sets are doing, one that answers and one that does not, whom
// the metadata routes refused and why, and who watches.
func TestSecurityMetrics(t *testing.T) {
	dir := t.TempDir()
	key, _, public := MakeKey(t, filepath.Join(dir, "keys"))
	jwk, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(map[string]any{"keys": []json.RawMessage{jwk}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "set.json"), set, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "pdrouter.yaml")
	config := `
listen: {clients: "127.0.0.1:0", agents: "127.0.0.1:0", operations: "127.0.0.1:0"}
models: [{name: m, connector: none, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
auth:
  clients: {issuers: [{issuer: "https://gone.example", jwks: {url: missing.json}}]}
  agents: {issuers: [{issuer: "https://here.example", jwks: {url: set.json}}]}
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
	get := func(url, token string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	page := func() string {
		resp := get("http://"+g.operations.Addr().String()+"/metrics", "")
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	scoped := func(scope string) string {
		return Mint(t, key, auth.Grant{Issuer: "https://here.example", Audience: auth.MetadataAudience, Subject: "somebody", Scopes: []string{scope}})
	}
	Until(t, "both issuers were asked", func() bool {
		p := page()
		return strings.Contains(p, `pdrouter_jwks_keys{audience="pdrouter-metadata",issuer="https://here.example"} 1`) &&
			strings.Contains(p, `pdrouter_jwks_fetch_failures_total{audience="pdrouter",issuer="https://gone.example"} 1`)
	})
	agents := "http://" + g.agents.Addr().String() + "/metadata/v1"
	for _, token := range []string{"", "x.y.z", "x.y.z", scoped("write")} {
		get(agents+"/engines", token).Body.Close()
	}
	watch := get(agents+"/watch", scoped("read"))
	defer watch.Body.Close()
	for lines := bufio.NewScanner(watch.Body); lines.Scan() && lines.Text() != "event: sync"; {
	}
	got := page()
	for _, want := range []string{
		`pdrouter_jwks_keys{audience="pdrouter",issuer="https://gone.example"} 0`,
		`pdrouter_jwks_stale{audience="pdrouter",issuer="https://gone.example"} 1`,
		`pdrouter_jwks_stale{audience="pdrouter-metadata",issuer="https://here.example"} 0`,
		`pdrouter_jwks_fetches_total{audience="pdrouter-metadata",issuer="https://here.example"} 1`,
		`pdrouter_jwks_fetch_failures_total{audience="pdrouter-metadata",issuer="https://here.example"} 0`,
		`pdrouter_agent_refusals_total{reason="no_credentials",status="401"} 1`,
		`pdrouter_agent_refusals_total{reason="invalid_token",status="401"} 2`,
		`pdrouter_agent_refusals_total{reason="insufficient_scope",status="403"} 1`,
		`pdrouter_metadata_watches 1`,
		`pdrouter_metadata_watch_syncs_total{reason="store"} 1`,
		`pdrouter_metadata_watch_syncs_total{reason="slow_reader"} 0`,
		`pdrouter_foreign_reports_total 0`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	age := regexp.MustCompile(`(?m)^pdrouter_jwks_age_seconds\{audience="pdrouter-metadata",issuer="https://here.example"\} [0-9]`)
	if !age.MatchString(got) || strings.Contains(got, `pdrouter_jwks_age_seconds{audience="pdrouter",`) {
		t.Error("want the age of the set that answered, and of no other")
	}
	if strings.Contains(got, "somebody") || strings.Contains(got, "metadata_quarantined") {
		t.Error("a subject is a label, or a store in memory quarantines")
	}
	if t.Failed() {
		t.Log(got)
	}
}
