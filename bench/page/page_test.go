package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench"
	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

const measurements = "../../docs/measurements"

// TestPageIsOfItsReports: docs/measurements has the page and the charts that its reports give, and nothing else.
func TestPageIsOfItsReports(t *testing.T) {
	want, err := files(filepath.Join(measurements, "data"))
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir(measurements)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range there {
		if _, ok := want[f.Name()]; !ok && f.Name() != "data" {
			t.Errorf("%s is none of the page's files", f.Name())
		}
	}
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(measurements, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if d := cmp.Diff(string(got), string(content)); d != "" {
			t.Errorf("%s is not what its reports give; run make measurements:\n%s", name, d)
		}
	}
}

// TestRunWritesThePage: the command puts the same files into a folder.
func TestRunWritesThePage(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "data"), os.DirFS(filepath.Join(measurements, "data"))); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{dir}); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range regexp.MustCompile(`!\[[^]]*\]\(([^)]+)\)`).FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join(dir, link[1])); err != nil {
			t.Error(err)
		}
	}
	if err := run(nil); err == nil {
		t.Error("without a folder it wrote something")
	}
}

// TestMethodsOfAllSuites: each family of suites has a text, and each text a family.
func TestMethodsOfAllSuites(t *testing.T) {
	want := map[string]bool{}
	for _, s := range bench.Suites() {
		name, _, _ := strings.Cut(s.Name, "/")
		want[name+".md"] = true
	}
	there, err := methods.ReadDir("methods")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range there {
		got[f.Name()] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// pageOf is a page of one report.
func pageOf(rows ...report.Row) *page {
	return &page{Suites: []suite{{harness.Suite{Name: "overhead/x"}, &report.Report{Suite: "overhead/x", Rows: rows}}}}
}

// missing is a row that reaches one of its two aims.
func missing(name string, ratio float64) report.Row {
	spread := report.Spread{Min: ratio, Median: ratio, Max: ratio}
	return report.Row{
		Name: name, What: "CPU", Unit: "µs", Ours: report.Figure{Of: "pdrouter", Spread: spread},
		Beside: []report.Figure{{Of: "baseline proxy", Ratio: &spread}, {Of: "absent", Cannot: "not installed"}},
		Goals:  []report.Reached{{Goal: "≤ 1.5 × baseline proxy", Met: "no", Beside: "baseline proxy"}, {Goal: "≤ 9 µs", Met: "yes"}},
	}
}

func TestLimitsExplainWhatIsMissed(t *testing.T) {
	p := pageOf(missing("pull", 2), missing("push", 3))
	got, err := p.limits([]limit{{"CPU", `^overhead/x: .* baseline proxy$`, "why"}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"`overhead/x`, aim ≤ 1.5 × baseline proxy: 2 figures are at a ratio of 2 to 3"}, got[0].Missed); d != "" {
		t.Error(d)
	}
	for name, c := range map[string]struct {
		known []limit
		want  string
	}{
		"a missed aim without a reason": {[]limit{{"CPU", `: pull `, "why"}}, "overhead/x: push CPU: ≤ 1.5 × baseline proxy"},
		"a reason without a missed aim": {[]limit{{"CPU", `^overhead`, "why"}, {"latency", `^none`, "why"}}, `"latency"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := p.limits(c.known); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want an error that names %s", err, c.want)
			}
		})
	}
}

func TestRatios(t *testing.T) {
	want := "| pull | CPU | 2.00–2.00–2.00 µs | baseline proxy 0: ×2.00 (2.00–2.00) | ≤ 1.5 × baseline proxy: no; ≤ 9 µs: yes |"
	if got := pageOf(missing("pull", 2)).Suites[0].Ratios(); !strings.HasSuffix(got, want) {
		t.Errorf("got %q; want it to end in %q", got, want)
	}
}

// TestBarsBeginAtZero: a bar of twice the figure is twice as long, and begins where the other one does.
func TestBarsBeginAtZero(t *testing.T) {
	spread := func(v float64) report.Spread { return report.Spread{Min: v, Median: v, Max: v} }
	svg, err := chart{axis: "µs", groups: []group{{label: "1 KB", bars: []bar{{gateway, spread(300)}, {smg, spread(600)}}}}}.svg()
	if err != nil {
		t.Fatal(err)
	}
	// ends are the lower and the upper end of the first shape in a colour; of these the bars come before the legend.
	ends := func(colour string) (low, high float64) {
		m := regexp.MustCompile(`<path d="M[\d.]+,([\d.]+)L[\d.]+,([\d.]+)L[^"]*" style="fill:` + colour).FindSubmatch(svg)
		if m == nil {
			t.Fatalf("nothing is drawn in %s", colour)
		}
		low, _ = strconv.ParseFloat(string(m[1]), 64)
		high, _ = strconv.ParseFloat(string(m[2]), 64)
		return low, high
	}
	low, high := ends("#0072B2")
	other, twice := ends("#009E73")
	if ratio := (twice - other) / (high - low); low != other || ratio < 1.99 || ratio > 2.01 {
		t.Errorf("bars from %v to %v and from %v to %v; want one twice as long, from the same place", low, high, other, twice)
	}
	if !strings.Contains(string(svg), ">600</text>") {
		t.Error("the figure does not stand at its bar")
	}
}
