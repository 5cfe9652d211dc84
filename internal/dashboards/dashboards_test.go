package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pdrouter/internal/telemetry"
)

// TestExpressions: what alerts and panels ask for is in the table of metrics.
func TestExpressions(t *testing.T) {
	for _, a := range Alerts() {
		if err := Check(a.Expr); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
		for _, s := range append(a.Fires, a.Quiet...) {
			series, _, _ := strings.Cut(s, " ")
			if err := Check(series); err != nil {
				t.Errorf("%s: %v", a.Name, err)
			}
		}
		todo := a.Steps
		if a.Do != "" {
			todo = append(todo, a.Do)
		}
		for _, text := range append([]string{a.Summary, a.Means, a.Look}, todo...) {
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q is no sentence", a.Name, text)
			}
		}
		if len(todo) == 0 || regexp.MustCompile(`^\[[^\]]*\]\([^)]*\)\.$`).MatchString(todo[0]) {
			t.Errorf("%s: what to do stands elsewhere: %q", a.Name, todo)
		}
		if strings.Contains(a.Look, "/ui`") && !strings.Contains(a.Look, "/status`") && !strings.Contains(a.Look, "/requests`") {
			t.Errorf("%s: %q names the page alone, not what a command can read", a.Name, a.Look)
		}
		if !regexp.MustCompile(`^Pdrouter[A-Z]\w+$`).MatchString(a.Name) || a.For == "" || a.Severity != "critical" && a.Severity != "warning" || len(a.Fires) == 0 || len(a.Quiet) == 0 {
			t.Errorf("%+v is not complete", a)
		}
	}
	for _, bad := range []string{"pdrouter_nothing > 0", `pdrouter_engine_up{model="m"}`, "sum by (tenant) (pdrouter_engine_up)", "pdrouter_engine_up_bucket"} {
		if Check(bad) == nil {
			t.Errorf("Check accepts %s", bad)
		}
	}
}

// TestDashboardIsWhole: every expression is of metrics in the table, every metric has a panel, and no two panels overlap or share an id.
func TestDashboardIsWhole(t *testing.T) {
	text, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	type one struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ W, H, X, Y int }
		Targets []struct{ Expr string }
		Panels  []one
	}
	var d struct{ Panels []one }
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	ids, titles, cells := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	var walk func([]one)
	walk = func(list []one) {
		for _, p := range list {
			if ids[p.ID] {
				t.Errorf("two panels have the id %d", p.ID)
			}
			ids[p.ID], titles[p.Title] = true, true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if cells[at] != "" {
						t.Fatalf("%s and %s overlap", p.Title, cells[at])
					}
					cells[at] = p.Title
				}
			}
			for _, q := range p.Targets {
				if err := Check(q.Expr); err != nil || strings.Contains(q.Expr, "$m") && !strings.Contains(q.Expr, "$model") {
					t.Errorf("%s: %s: %v", p.Title, q.Expr, err)
				}
			}
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s asks for nothing", p.Title)
			}
			walk(p.Panels)
		}
	}
	walk(d.Panels)
	for _, s := range telemetry.Subjects() {
		for _, m := range s.Metrics {
			if !titles[m.Name] {
				t.Errorf("%s has no panel", m.Name)
			}
		}
	}
}

// TestRulesWithPromtool: Prometheus accepts the rules, and each alert fires on the series that are made for it, and not on others.
func TestRulesWithPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if promtool, err = filepath.Abs("../../.deps/prometheus/usr/bin/promtool"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(promtool); err != nil {
			t.Skip("SKIPPED: there is no promtool; internal/deps/promtool.sh installs it")
		}
	}
	text, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rules := write("alerts.yaml", text)
	run("check", "rules", rules)

	type series struct {
		Series string
		Values string
	}
	type sample struct {
		Labels string
		Value  int
	}
	type promql struct {
		Expr     string
		EvalTime string   `yaml:"eval_time"`
		Samples  []sample `yaml:"exp_samples"`
	}
	type test struct {
		Name   string
		Every  string   `yaml:"interval"`
		Series []series `yaml:"input_series"`
		Asks   []promql `yaml:"promql_expr_test"`
	}
	var tests []test
	for _, a := range Alerts() {
		for fires, input := range map[int][]string{1: a.Fires, 0: a.Quiet} {
			one := test{Name: fmt.Sprintf("%s %d", a.Name, fires), Every: "1m"}
			for _, s := range input {
				name, values, _ := strings.Cut(s, " ")
				one.Series = append(one.Series, series{name, values})
			}
			// At some minute of the first 30, or at none.
			expr := fmt.Sprintf(`max(max_over_time(ALERTS{alertname=%q,alertstate="firing"}[30m])) or vector(0)`, a.Name)
			one.Asks = []promql{{expr, "30m", []sample{{"{}", fires}}}}
			tests = append(tests, one)
		}
	}
	b, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	run("test", "rules", write("tests.yaml", string(b)))
}
