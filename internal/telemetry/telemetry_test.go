package telemetry

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/internal/golden"
)

// TestTable: every row is complete, and no two rows have the same name.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Subjects() {
		if s.Title == "" || !sentence(s.Intro) || len(s.Metrics) == 0 {
			t.Errorf("subject %q has no title, no introduction or no metrics", s.Title)
		}
		for _, m := range s.Metrics {
			switch {
			case seen[m.Name]:
				t.Errorf("%s has two rows", m.Name)
			case !regexp.MustCompile(`^pdrouter_[a-z_]+$`).MatchString(m.Name):
				t.Errorf("%s is no name of a metric of pdrouter", m.Name)
			case (m.Kind == Counter) != strings.HasSuffix(m.Name, "_total"):
				t.Errorf("%s is a %s; want _total at the end of counters alone", m.Name, m.Kind)
			case m.Unit == "" || !sentence(m.Help) || m.Use != "" && !sentence(m.Use):
				t.Errorf("%s: want a unit, and sentences as Help and Use", m.Name)
			case m.Kind == Gauge && m.AtStart != "":
				t.Errorf("%s: AtStart is not for gauges", m.Name)
			}
			seen[m.Name] = true
		}
	}
}

func sentence(text string) bool { return regexp.MustCompile(`^[A-Z0-9].*\.$`).MatchString(text) }

// TestScrapeRefusesWhatTheTableLacks: a name, a kind or labels that are not in the table make a scrape fail, or panic at the start.
func TestScrapeRefusesWhatTheTableLacks(t *testing.T) {
	for name, read := range map[string]func(*Scrape){
		"name":   func(s *Scrape) { s.Set("pdrouter_nothing", 1) },
		"labels": func(s *Scrape) { s.Set("pdrouter_engine_up", 1) },
		"kind":   func(s *Scrape) { s.SetHistogram("pdrouter_requests_in_flight", 1, 1, nil) },
		"set":    func(s *Scrape) { s.Set("pdrouter_pair_handshake_seconds", 1) },
	} {
		r := New()
		r.Collect(read)
		if _, err := r.Gather(); err == nil {
			t.Errorf("%s: the scrape succeeds", name)
		}
	}
	for name, make := range map[string]func(*Registry){
		"counter":   func(r *Registry) { r.Counter("pdrouter_nothing_total") },
		"kind":      func(r *Registry) { r.Counter("pdrouter_engine_up") },
		"histogram": func(r *Registry) { r.Histogram("pdrouter_requests_total") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			make(New())
		}()
	}
}

// TestHelp: a scrape shows the help and the type of the table.
func TestHelp(t *testing.T) {
	r := New()
	r.Counter("pdrouter_attempts_total").WithLabelValues("m").Inc()
	r.Collect(func(s *Scrape) { s.SetBool("pdrouter_engine_up", true, "e") })
	want := `
# HELP pdrouter_attempts_total Attempts to serve a request, retries included.
# TYPE pdrouter_attempts_total counter
pdrouter_attempts_total{model="m"} 1
# HELP pdrouter_engine_up 1 unless the engine is down.
# TYPE pdrouter_engine_up gauge
pdrouter_engine_up{engine="e"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "pdrouter_attempts_total", "pdrouter_engine_up"); err != nil {
		t.Error(err)
	}
}

// TestMetricsReference: docs/metrics.md is what the table says. -update writes it.
func TestMetricsReference(t *testing.T) {
	intro, err := os.ReadFile("testdata/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.Write(intro)
	for _, s := range Subjects() {
		fmt.Fprintf(&page, "\n## %s\n%s\n\n| metric | type, unit | meaning | use | at 0 from the start |\n| --- | --- | --- | --- | --- |\n", s.Title, s.Intro)
		for _, m := range s.Metrics {
			name := m.Name
			if len(m.Labels) > 0 {
				name += "{" + strings.Join(m.Labels, ",") + "}"
			}
			fmt.Fprintf(&page, "| `%s` | %s, %s | %s | %s | %s |\n", name, m.Kind, m.Unit, m.Help, m.Use, m.AtStart)
		}
	}
	golden.Equal(t, "../../docs/metrics.md", page.String())
}

// TestPagesNameMetrics: the documentation, the examples and the manifests name only metrics that there are.
func TestPagesNameMetrics(t *testing.T) {
	known := map[string]bool{}
	for _, s := range Subjects() {
		for _, m := range s.Metrics {
			known[m.Name] = true
		}
	}
	seen := 0
	for _, pattern := range []string{"README.md", "docs/*.md", "configs/*", "configs/*/*"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", pattern, err)
		}
		for _, path := range files {
			b, err := os.ReadFile(path)
			if err != nil {
				continue // a folder
			}
			for _, name := range regexp.MustCompile(`\bpdrouter_[a-z_]*[a-z]`).FindAllString(string(b), -1) {
				if strings.HasPrefix(name, "pdrouter_vllm") || strings.HasPrefix(name, "pdrouter_plane_") {
					continue // the connector in vLLM, and its own metrics
				}
				seen++
				if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); !known[name] && !known[base] {
					t.Errorf("%s names %s, which is not in the table", path, name)
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d names were seen", seen)
	}
}
