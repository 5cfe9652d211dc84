package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/auth/keys"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/discovery"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/golden"
	"pdrouter/internal/limits"
	"pdrouter/internal/reload"
	"pdrouter/internal/shared"
	"pdrouter/internal/telemetry"
	"pdrouter/internal/tracing"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router"
	"pdrouter/router/admission"
	"pdrouter/router/dispatch"
	"pdrouter/router/firsttoken"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
	"pdrouter/router/kvevents"
	"pdrouter/router/migration"
	"pdrouter/router/peers"
	"pdrouter/router/reclaim"
	"pdrouter/router/report"
	"pdrouter/router/scaling"
)

// TestMetricsExposition: every metric of the table has a value, and the names, types and labels of all metrics are those of
// testdata/metrics.txt, which dashboards depend on. -update writes the file.
func TestMetricsExposition(t *testing.T) {
	families, err := allMetrics(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	line := func(kind, name string, labels []string) string {
		return fmt.Sprintf("%s %s{%s}\n", kind, name, strings.Join(slices.Sorted(slices.Values(labels)), ","))
	}
	var got, table []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if strings.HasPrefix(f.GetName(), "pdrouter_") {
			got = append(got, line(strings.ToLower(f.GetType().String()), f.GetName(), labels))
		}
	}
	for _, s := range telemetry.Subjects() {
		for _, m := range s.Metrics {
			table = append(table, line(m.Kind.String(), m.Name, m.Labels))
		}
	}
	slices.Sort(got)
	slices.Sort(table)
	if d := cmp.Diff(got, table); d != "" {
		t.Errorf("values(-) table(+):\n%s", d)
	}
	golden.Equal(t, "testdata/metrics.txt", strings.Join(got, ""))
}

// exposed returns what a scrape shows of pdrouter's own metrics, without the help texts.
func exposed(t *testing.T, r *telemetry.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatal(w.Body)
	}
	var out strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "pdrouter_") || strings.HasPrefix(line, "# TYPE pdrouter_") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// collected returns what a scrape shows of what read reports.
func collected(t *testing.T, read func(*telemetry.Scrape)) string {
	t.Helper()
	r := telemetry.New()
	r.Collect(read)
	return exposed(t, r)
}

// allMetrics returns the metrics of a gateway in which all that has a metric has happened.
func allMetrics(t *testing.T) *metrics {
	t.Helper()
	m := newMetrics("v1", "abcdef0")
	m.observe(report.Summary{TokenIDs: report.TokensForwarded, FirstToken: firsttoken.Prefill, Shadow: &report.Shadow{Result: "same"}, Model: "m", Route: "/v1/completions", Status: 200, Outcome: dispatch.Completed, Reason: "split", Prefill: "p",
		Decode: "d", Attempts: 1, Continued: 1, Removed: true, Phases: report.Phases{FirstToken: 1, Total: 1}})
	m.moved(migration.Ended{Reason: migration.ForRoute, Result: migration.Moved, Tokens: 1, Bytes: 640, Took: time.Second})
	m.refused(404, "unknown_model")
	m.refusedAgent(403, "bad_signature")

	yes := true
	set := someKeySet(t)
	stats := router.Stats{
		Engines:    []router.EngineStats{{Name: "p", CacheTokens: 4096, HandOffs: &handoff.EngineStats{}, Events: &yes, Forecast: fleet.EngineForecast{Wait: 1.5, Streams: 2, Prompts: .25}, Leaked: map[string]int{"held": 1}, MaybeLeaked: 1, Pins: true, Unrouted: &fleet.UnroutedLoad{Requests: 3}, Ejections: map[string]uint64{"answers": 1}}},
		Pairs:      []metadata.PairState{{Prefill: "p", Decode: "d", Reason: "heads"}},
		HandOffs:   []handoff.PairStats{{Prefill: "p", Decode: "d"}},
		Prefixes:   &prefixes.Stats{},
		Migration:  &migration.Stats{PinnedBlocks: map[string]int{"p": 3}},
		Peers:      &peers.Stats{Gateways: 1},
		KVEvents:   []kvevents.Stats{{Engine: "p", Age: 1}},
		Moved:      []report.Moved{{Prefill: "p", Decode: "d"}},
		Queues:     []router.QueueStats{{Model: "m", Stats: admission.Stats{Denied: map[string]uint64{"queue_full": 1}}}},
		Retries:    []router.RetryStats{{Model: "m"}},
		Reclaimed:  []reclaim.Freed{{Ending: "not_taken", By: "restart"}},
		PanicModes: []fleet.PanicMode{{Model: "m", Role: "decode"}},
		Forecasts:  map[string]policies.Demand{"m": {Error: .125}},
		Scalings:   []fleet.Scaling{{Model: "m", Roles: []fleet.RoleScaling{{Role: "decode", Load: scaling.Load{Ready: 1}, Wanted: 1}}}},
		PairsOut:   []fleet.PairOut{{Prefill: "p", Decode: "d", State: "open"}},
	}
	adminapi.New(adminapi.Config{Requests: m.adminRequests})
	m.registry.Collect(func(out *telemetry.Scrape) {
		collectRouter(out, stats)
		collectLimits(out, limits.Stats{Refused: map[string]uint64{"requests": 1}})
		collectSources(out, []fleetview.Engine{{List: fleetview.List{Model: "m", Key: "engines"}, From: fleetview.FromStatic}}, fleetview.Stats{
			DNS:   map[fleetview.List]discovery.DNSStats{{Model: "m", Key: "engines"}: {}},
			Files: map[fleetview.List]discovery.FileStats{{Model: "m", Key: "prefill"}: {Good: time.Now()}},
		})
		collectMetadata(out, cache.Stats{Age: 1}, routes.WatchStats{})
		out.Set("pdrouter_metadata_quarantined_total", 1)
		collectShared(out, shared.CacheStats{}, map[string]uint64{"engines": 1, "load": 1})
		collectKeySets(out, []reload.IssuerSet{{JWKS: set, Audience: "pdrouter", Issuer: "https://issuer.example"}})
		collectCredentials(out, reload.Stats{})
		collectConfig(out, reloadCount{}, "digest")
		collectTracing(out, tracing.Stats{})
	})
	return m
}

// someKeySet returns a key set that has been fetched.
func someKeySet(t *testing.T) *keys.JWKS {
	t.Helper()
	_, _, public := MakeKey(t, filepath.Join(t.TempDir(), "keys"))
	key, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "set.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"keys":[%s]}`, key), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := keys.NewJWKS(keys.JWKSConfig{URL: path}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = set.Run(ctx) // always nil
	}()
	<-set.Asked()
	stop()
	<-ended
	return set
}
