package dashboards

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"pdrouter/internal/telemetry"
)

// panel is one panel of the dashboard.
type panel struct {
	title   string
	unit    string // Grafana's name of it; "" for short numbers
	queries []query
	kind    string // of Grafana's panels; "" is timeseries
	stacked bool
}

type query struct{ expr, legend string }

// rows are the panels that people look at first, by what they ask. In expressions $m stands for the chosen gateways and models, $i for the gateways
// alone: both become matchers.
func rows() []struct {
	title  string
	panels []panel
} {
	type row = struct {
		title  string
		panels []panel
	}
	quantile := func(q, metric, by string) string {
		return fmt.Sprintf("histogram_quantile(%s, sum by (le, %s) (rate(%s_bucket{$m}[$__rate_interval])))", q, by, metric)
	}
	return []row{
		{"Are clients served?", []panel{
			{title: "Requests by outcome", unit: "reqps", stacked: true, queries: []query{{"sum by (outcome) (rate(pdrouter_requests_total{$m}[$__rate_interval]))", "{{outcome}}"}}},
			{title: "Failed requests", unit: "percentunit", queries: []query{{`sum by (model) (rate(pdrouter_requests_total{$m,outcome=~"failed_before|failed_after"}[$__rate_interval])) / sum by (model) (rate(pdrouter_requests_total{$m}[$__rate_interval]))`, "{{model}}"}}},
			{title: "Time to first token", unit: "s", queries: []query{
				{quantile("0.5", "pdrouter_time_to_first_token_seconds", "model"), "{{model}} p50"},
				{quantile("0.95", "pdrouter_time_to_first_token_seconds", "model"), "{{model}} p95"},
				{quantile("0.99", "pdrouter_time_to_first_token_seconds", "model"), "{{model}} p99"}}},
			{title: "Refused before admission", unit: "reqps", stacked: true, queries: []query{{"sum by (status, reason) (rate(pdrouter_refusals_total{$i}[$__rate_interval]))", "{{status}} {{reason}}"}}},
		}},
		{"Where does the time go?", []panel{
			{title: "Mean time of each phase", unit: "s", stacked: true, queries: []query{{"sum by (phase) (rate(pdrouter_request_phase_duration_seconds_sum{$m}[$__rate_interval])) / sum by (phase) (rate(pdrouter_request_phase_duration_seconds_count{$m}[$__rate_interval]))", "{{phase}}"}}},
			{title: "95th percentile of each phase", unit: "s", queries: []query{{quantile("0.95", "pdrouter_request_phase_duration_seconds", "phase"), "{{phase}}"}}},
			{title: "Waiting for a place", queries: []query{{"sum by (model) (pdrouter_queue_waiting{$m})", "{{model}} waiting"}, {"sum by (model) (pdrouter_queue_in_flight{$m})", "{{model}} with engines"}, {"sum by (model) (pdrouter_queue_places{$m})", "{{model}} places"}}},
			{title: "Time until the queue is empty", unit: "s", queries: []query{{"max by (model) (pdrouter_queue_drain_seconds{$m})", "{{model}}"}}},
			{title: "Tokens", unit: "short", queries: []query{{"sum by (kind) (rate(pdrouter_tokens_total{$m}[$__rate_interval]))", "{{kind}}/s"}}},
		}},
		{"Scale", []panel{
			{title: "Engines wanted and there", queries: []query{{"max by (model, role) (pdrouter_scaling_desired_replicas{$m})", "{{model}} {{role}} wanted"}, {"max by (model, role, state) (pdrouter_scaling_replicas{$m})", "{{model}} {{role}} {{state}}"}}},
			{title: "How full a role is", unit: "percentunit", queries: []query{{"max by (model, role) (pdrouter_scaling_saturation_ratio{$m})", "{{model}} {{role}}"}}},
			{title: "Prompts yet to compute", unit: "s", queries: []query{{"max by (model, role) (pdrouter_scaling_backlog_seconds{$m})", "{{model}} {{role}}"}}},
			{title: "90th percentile over the objective", unit: "percentunit", queries: []query{{"max by (model) (pdrouter_ttft_objective_ratio{$m})", "{{model}} first token"}, {"max by (model) (pdrouter_itl_objective_ratio{$m})", "{{model}} between tokens"}}},
			{title: "Refused for the objective", unit: "reqps", queries: []query{{`sum by (model) (rate(pdrouter_queue_denied_total{$m,reason="objective"}[$__rate_interval]))`, "{{model}}"}}},
			{title: "Age of what is known of speeds", unit: "s", queries: []query{{"min by (model, role) (pdrouter_scaling_observation_age_seconds{$m})", "{{model}} {{role}}"}}},
		}},
		{"Why were requests split or not?", []panel{
			{title: "Decisions by reason", unit: "reqps", stacked: true, queries: []query{{"sum by (reason) (rate(pdrouter_routing_decisions_total{$m}[$__rate_interval]))", "{{reason}}"}}},
			{title: "Attempts for each request", queries: []query{{"sum by (model) (rate(pdrouter_attempts_total{$m}[$__rate_interval])) / sum by (model) (rate(pdrouter_requests_total{$m}[$__rate_interval]))", "{{model}}"}}},
			{title: "Cached part of prompts", unit: "percentunit", queries: []query{{`sum by (model) (rate(pdrouter_tokens_total{$m,kind="cached"}[$__rate_interval])) / sum by (model) (rate(pdrouter_tokens_total{$m,kind="prompt"}[$__rate_interval]))`, "{{model}}"}}},
			{title: "Shadow policy", unit: "reqps", stacked: true, queries: []query{{"sum by (result) (rate(pdrouter_shadow_decisions_total{$m}[$__rate_interval]))", "{{result}}"}}},
		}},
		{"Are the engines well?", []panel{
			{title: "Engines by state", stacked: true, queries: []query{{"sum by (state) (max by (engine, state) (pdrouter_engine_state{$i}))", "{{state}}"}}},
			{title: "Engines that are not up", kind: "table", queries: []query{{`max by (engine, state) (pdrouter_engine_state{$i,state!="up"}) == 1`, ""}}},
			{title: "Requests at each engine", queries: []query{{"sum by (engine) (pdrouter_engine_requests_in_flight{$i})", "{{engine}}"}}},
			{title: "Ejections", queries: []query{{"sum by (engine, reason) (increase(pdrouter_engine_ejections_total{$i}[$__rate_interval])) > 0", "{{engine}} {{reason}}"}}},
		}},
		{"Does the KV arrive?", []panel{
			{title: "Pairs", queries: []query{{"max(pdrouter_pairs_ready{$i})", "ready"}, {"max(count by (instance) (pdrouter_pair_ready{$i}))", "all"}, {"sum(pdrouter_pairs_waiting{$i})", "requests that wait"}}},
			{title: "KV moved", unit: "Bps", queries: []query{{"sum by (prefill, decode) (rate(pdrouter_kv_bytes_total{$i}[$__rate_interval]))", "{{prefill}} to {{decode}}"}}},
			{title: "Leaked KV blocks", queries: []query{{"max by (engine, why) (pdrouter_leaked_kv_blocks{$i})", "{{engine}} {{why}}"}, {"max by (engine) (pdrouter_unresolved_kv_blocks{$i})", "{{engine}}, not known yet"}}},
			{title: "Failed requests by pair", unit: "reqps", queries: []query{{`sum by (prefill, decode) (rate(pdrouter_pair_requests_total{$m,outcome=~"failed_before|failed_after"}[$__rate_interval])) > 0`, "{{prefill}} to {{decode}}"}}},
		}},
	}
}

// Dashboard returns the dashboard as Grafana's JSON: the rows above, then a folded row for each subject of the table with a panel for each of its
// metrics.
func Dashboard() (string, error) {
	var panels []any
	y, id := 0, 0
	next := func() int { id++; return id }
	place := func(list []panel) (out []any) {
		for i, p := range list {
			out = append(out, p.json(next(), 8*(i%3), y+8*(i/3)))
		}
		y += 8 * ((len(list) + 2) / 3)
		return out
	}
	row := func(title string, folded bool, list []panel) {
		r := map[string]any{"id": next(), "type": "row", "title": title, "collapsed": folded, "gridPos": grid(24, 1, 0, y), "panels": []any{}}
		y++
		if inside := place(list); folded {
			r["panels"] = inside
			panels = append(panels, r)
		} else {
			panels = append(append(panels, r), inside...)
		}
	}
	for _, r := range rows() {
		row(r.title, false, r.panels)
	}
	for _, s := range telemetry.Subjects() {
		var all []panel
		for _, m := range s.Metrics {
			all = append(all, panelOf(m))
		}
		row("All metrics: "+s.Title, true, all)
	}
	variable := func(name, label, metric string) map[string]any {
		q := fmt.Sprintf("label_values(%s, %s)", metric, name)
		return map[string]any{"name": name, "label": label, "type": "query", "datasource": source, "query": map[string]any{"query": q, "refId": "v"}, "definition": q,
			"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*", "current": map[string]any{"text": "All", "value": "$__all"}}
	}
	b, err := json.MarshalIndent(map[string]any{
		"uid": "pdrouter", "title": "pdrouter", "description": made, "tags": []string{"pdrouter"}, "schemaVersion": 39, "version": 1, "editable": true,
		"time": map[string]any{"from": "now-1h", "to": "now"}, "refresh": "30s", "graphTooltip": 1, "panels": panels,
		"templating": map[string]any{"list": []any{
			map[string]any{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("instance", "Gateway", "pdrouter_build_info"), variable("model", "Model", "pdrouter_queue_places"),
		}},
	}, "", " ")
	return string(b) + "\n", err
}

var source = map[string]any{"type": "prometheus", "uid": "${source}"}

func grid(w, h, x, y int) map[string]int { return map[string]int{"w": w, "h": h, "x": x, "y": y} }

// expand replaces $m and $i by matchers of Grafana's variables.
func expand(expr string) string {
	return strings.NewReplacer("$m", `instance=~"$instance",model=~"$model"`, "$i", `instance=~"$instance"`).Replace(expr)
}

func (p panel) json(id, x, y int) map[string]any {
	kind := p.kind
	if kind == "" {
		kind = "timeseries"
	}
	targets, described := []any{}, []string{}
	for i, q := range p.queries {
		t := map[string]any{"refId": string(rune('A' + i)), "datasource": source, "expr": expand(q.expr), "legendFormat": q.legend}
		if kind == "table" {
			t["format"], t["instant"] = "table", true
		}
		targets = append(targets, t)
		for _, name := range metricNames.FindAllString(q.expr, -1) {
			if m, ok := find(name); ok {
				text := m.Name + ": " + strings.TrimSpace(m.Help+" "+m.Use)
				if !slices.Contains(described, text) {
					described = append(described, text)
				}
			}
		}
	}
	stacking := "none"
	if p.stacked {
		stacking = "normal"
	}
	return map[string]any{
		"id": id, "type": kind, "title": p.title, "description": strings.Join(described, "\n\n"), "datasource": source, "gridPos": grid(8, 8, x, y), "targets": targets,
		"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.unit, "min": 0, "custom": map[string]any{"fillOpacity": 10, "stacking": map[string]any{"mode": stacking}}}, "overrides": []any{}},
		"options":     map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom"}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}},
	}
}

// panelOf is the panel of one metric of the table.
func panelOf(m telemetry.Metric) panel {
	matchers := "$i"
	if slices.Contains(m.Labels, "model") {
		matchers = "$m"
	}
	by, legend := append([]string{"instance"}, m.Labels...), []string{"{{instance}}"}
	for _, l := range m.Labels {
		legend = append(legend, "{{"+l+"}}")
	}
	p := panel{title: m.Name, unit: unitOf(m)}
	q := query{legend: strings.Join(legend, " ")}
	switch m.Kind {
	case telemetry.Counter:
		q.expr = fmt.Sprintf("sum by (%s) (rate(%s{%s}[$__rate_interval]))", strings.Join(by, ", "), m.Name, matchers)
	case telemetry.Histogram:
		q.expr = fmt.Sprintf("histogram_quantile(0.95, sum by (le, %s) (rate(%s_bucket{%s}[$__rate_interval])))", strings.Join(by, ", "), m.Name, matchers)
		q.legend += " p95"
	default:
		q.expr = fmt.Sprintf("%s{%s}", m.Name, matchers)
	}
	p.queries = []query{q}
	return p
}

// unitOf is Grafana's unit of a metric, or of the rate of a counter.
func unitOf(m telemetry.Metric) string {
	switch {
	case m.Kind == telemetry.Counter && m.Unit == "bytes":
		return "Bps"
	case m.Kind == telemetry.Counter && m.Unit == "requests":
		return "reqps"
	case m.Kind == telemetry.Counter:
		return "cps"
	case m.Unit == "seconds" && strings.HasSuffix(m.Name, "_timestamp_seconds"):
		return "dateTimeAsIso"
	case m.Unit == "seconds":
		return "s"
	case m.Unit == "bytes":
		return "bytes"
	case m.Unit == "ratio":
		return "percentunit"
	}
	return "short"
}
