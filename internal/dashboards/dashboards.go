// Package dashboards makes what operators load into Prometheus and Grafana from the table of metrics in internal/telemetry and from its own
// tables of alerts and panels: deploy/prometheus/alerts.yaml, deploy/grafana/pdrouter.json, docs/runbook.md and its copy in internal/ui. Nothing of it runs in the
// gateway. `go test ./internal/telemetry -update` writes the files.
package dashboards

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pdrouter/internal/telemetry"
)

var (
	metricNames = regexp.MustCompile(`\bpdrouter_[a-z_]+`)
	selectors   = regexp.MustCompile(`\b(pdrouter_[a-z_]+)\{([^}]*)\}`)
	matchers    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	groupings   = regexp.MustCompile(`\b(?:by|on|ignoring|without)\s*\(([^)]*)\)`)
)

// Check reports metrics and labels in an expression of PromQL that the table does not have.
func Check(expr string) error {
	known := map[string]bool{"instance": true, "job": true, "le": true} // of Prometheus, and of histograms
	for _, name := range metricNames.FindAllString(expr, -1) {
		m, ok := find(name)
		if !ok {
			return fmt.Errorf("%s: there is no metric %s", expr, name)
		}
		for _, l := range m.Labels {
			known[l] = true
		}
	}
	for _, s := range selectors.FindAllStringSubmatch(expr, -1) {
		m, _ := find(s[1])
		for _, l := range matchers.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(m.Labels, l[1]) && l[1] != "instance" && l[1] != "job" {
				return fmt.Errorf("%s: %s has no label %s", expr, m.Name, l[1])
			}
		}
	}
	for _, g := range groupings.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(g[1], ",") {
			if l = strings.TrimSpace(l); l != "" && !known[l] {
				return fmt.Errorf("%s: no metric in it has the label %s", expr, l)
			}
		}
	}
	return nil
}

// find returns the metric of a series: a histogram has series with endings of their own.
func find(series string) (telemetry.Metric, bool) {
	for _, s := range telemetry.Subjects() {
		for _, m := range s.Metrics {
			if series == m.Name || m.Kind == telemetry.Histogram && slices.Contains([]string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}, series) {
				return m, true
			}
		}
	}
	return telemetry.Metric{}, false
}
