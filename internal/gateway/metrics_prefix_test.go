package gateway

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/telemetry"
	"pdrouter/policies/prefixes"
	"pdrouter/router"
)

func TestPrefixMetrics(t *testing.T) {
	read := func(s router.Stats) string {
		all := collected(t, func(out *telemetry.Scrape) { collectRouter(out, s) })
		return strings.Join(regexp.MustCompile(`(?m)^.*pdrouter_prefix_.*\n`).FindAllString(all, -1), "")
	}
	if got := read(router.Stats{}); got != "" {
		t.Errorf("without an index: got %s; want no series", got)
	}
	got := read(router.Stats{Prefixes: &prefixes.Stats{Links: 1, Bound: 2, Bytes: 3, Looked: 4, Known: 5, Evicted: 6}})
	want := `# TYPE pdrouter_prefix_bytes gauge
pdrouter_prefix_bytes 3
# TYPE pdrouter_prefix_entries gauge
pdrouter_prefix_entries 1
# TYPE pdrouter_prefix_evicted_total counter
pdrouter_prefix_evicted_total 6
# TYPE pdrouter_prefix_hits_total counter
pdrouter_prefix_hits_total 5
# TYPE pdrouter_prefix_lookups_total counter
pdrouter_prefix_lookups_total 4
`
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("got(-) want(+):\n%s", d)
	}
}
