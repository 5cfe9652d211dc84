package report

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// sampleReport is a report with every kind of column.
func sampleReport() *Report {
	row := Row{
		Name: "pull c=1", What: "CPU a request", Where: "everything on one CPU", Unit: "µs", Done: 7, Repeated: 2,
		Ours: Figure{Of: Us, Rounds: []float64{60, 64}},
		Beside: []Figure{
			{Of: "baseline proxy", Rounds: []float64{30, 32}}, {Of: "slow", Rounds: []float64{600, 640}, Peer: true}, {Of: "quick", Rounds: []float64{300, 320}, Peer: true},
			{Of: "absent", Cannot: "not installed", Peer: true},
		},
	}
	row.Sum(Goal{Beside: "baseline proxy", Times: 1.5}, Goal{Beside: BestPeer, Times: 0.25}, Goal{Beside: "absent", Times: 1})
	return &Report{Suite: "overhead/cpu-1k", Command: "pdrouter bench", Settings: "2 rounds of each, in turns", Machine: ReadMachine(2), Versions: ReadVersions(), Rows: []Row{row}}
}

func TestReportIsWritten(t *testing.T) {
	r := sampleReport()
	dir := filepath.Join(t.TempDir(), "measurements")
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := Read(dir, r.Suite)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, again, cmpopts.IgnoreFields(Figure{}, "Peer")); d != "" {
		t.Error(d)
	}
	b, err := os.ReadFile(filepath.Join(dir, "overhead-cpu-1k.json"))
	if err != nil {
		t.Fatal(err)
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(string(b), host) {
		t.Errorf("the report names the host %s", host)
	}
}

func TestReadWithoutReport(t *testing.T) {
	if _, err := Read(t.TempDir(), "idle"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v; want os.ErrNotExist", err)
	}
}

// TestReportAtTheTerminal: a line for each that stands beside pdrouter, with the aim that is held against it.
func TestReportAtTheTerminal(t *testing.T) {
	var terminal bytes.Buffer
	sampleReport().Table(&terminal)
	var lines []string
	for line := range strings.Lines(terminal.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"row of it unit pdrouter beside it figure ratio to reach reached where rounds repeated",
		"pull c=1 CPU a request µs 60.0–62.0–64.0 baseline proxy 30.0–31.0–32.0 ×2.00 (2.00–2.00) ≤ 1.5 × baseline proxy no everything on one CPU 2",
		"slow 600.0–620.0–640.0 ×0.10 (0.10–0.10)",
		"quick 300.0–310.0–320.0 ×0.20 (0.20–0.20) ≤ 0.25 × best peer yes",
		"absent not installed",
		"≤ 1 × absent",
	}
	if d := cmp.Diff(want, lines[:min(len(want), len(lines))]); d != "" {
		t.Error(d)
	}
}

// TestGoalRoundByRound: what is added to a multiple is held against each round's own figure beside. By the medians, 30 and 40, the
// goal would be reached.
func TestGoalRoundByRound(t *testing.T) {
	r := Row{Unit: "µs", Ours: Figure{Of: Us, Rounds: []float64{30, 30, 100}}, Beside: []Figure{{Of: "limit", Rounds: []float64{10, 40, 60}}}}
	if r.Sum(Goal{Beside: "limit", Times: 1, Plus: 5}); r.Goals[0] != (Reached{"≤ 1 × limit + 5 µs", "no", "limit"}) {
		t.Errorf("got %+v", r.Goals[0])
	}
}

// TestGoalStandsBesideItsOwn: a table's line has the goal that is held against whom it names, though both goals are the same one's.
func TestGoalStandsBesideItsOwn(t *testing.T) {
	r := Row{Beside: []Figure{{Of: "baseline proxy"}, {Of: "nginx"}, {Of: "peer"}}, Goals: []Reached{{Beside: "peer"}, {Beside: "peer"}, {Beside: "baseline proxy"}, {}}}
	if d := cmp.Diff([]line{{0, 2}, {1, -1}, {2, 0}, {-1, 1}, {-1, 3}}, r.pairUp(), cmp.AllowUnexported(line{})); d != "" {
		t.Error(d)
	}
}

// pairOf is a row with one figure beside pdrouter's.
func pairOf(name, unit, beside string, ours, others []float64, goals ...Goal) Row {
	r := Row{Name: name, Unit: unit, Ours: Figure{Of: Us, Rounds: ours}, Beside: []Figure{{Of: beside, Rounds: others}}}
	r.Sum(goals...)
	return r
}

func TestGoals(t *testing.T) {
	row := func(ours, other float64) *Row {
		r := pairOf("x", "µs", "limit", []float64{ours}, []float64{other})
		return &r
	}
	for name, c := range map[string]struct {
		goal        Goal
		ours, other float64
		text, met   string
	}{
		"at most":             {Goal{Beside: "limit", Times: 1.5}, 15, 10, "≤ 1.5 × limit", "yes"},
		"above":               {Goal{Beside: "limit", Times: 1.5}, 16, 10, "≤ 1.5 × limit", "no"},
		"at least":            {Goal{Beside: "limit", Times: 0.9, AtLeast: true}, 8, 10, "≥ 0.9 × limit", "no"},
		"at least, reached":   {Goal{Beside: "limit", Times: 0.9, AtLeast: true}, 9, 10, "≥ 0.9 × limit", "yes"},
		"alone":               {Goal{Plus: 40}, 39, 1, "≤ 40 µs", "yes"},
		"times and plus":      {Goal{Beside: "limit", Times: 1.5, Plus: 5}, 20, 10, "≤ 1.5 × limit + 5 µs", "yes"},
		"times and plus, not": {Goal{Beside: "limit", Times: 1.5, Plus: 5}, 21, 10, "≤ 1.5 × limit + 5 µs", "no"},
		"nobody there":        {Goal{Beside: BestPeer, Times: 2}, 1, 1, "≤ 2 × best peer", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.goal.text("µs"); got != c.text {
				t.Errorf("got %q; want %q", got, c.text)
			}
			if got := c.goal.met(row(c.ours, c.other)); got.Met != c.met {
				t.Errorf("got %+v; want %q", got, c.met)
			}
		})
	}
	r := sampleReport().Rows[0]
	if best := r.BesideOf(Goal{Beside: BestPeer}); best.Of != "quick" {
		t.Errorf("the best where less is better is %s", best.Of)
	}
	if best := r.BesideOf(Goal{Beside: BestPeer, AtLeast: true}); best.Of != "slow" {
		t.Errorf("the best where more is better is %s", best.Of)
	}
}

// TestGoalBesideNothing: what was measured as nothing, or as less, has no ratio; the medians tell.
func TestGoalBesideNothing(t *testing.T) {
	row := Row{Unit: "µs", Ours: Figure{Of: Us, Rounds: []float64{40, 50, 60}}, Beside: []Figure{{Of: "baseline proxy", Rounds: []float64{-5, 10, 20}}}}
	row.Sum(Goal{Beside: "baseline proxy", Times: 1.5}, Goal{Beside: "baseline proxy", Times: 5})
	if row.Goals[0].Met != "no" || row.Goals[1].Met != "yes" {
		t.Errorf("got %+v; want 50 to be more than 1.5 × 10 and no more than 5 × 10", row.Goals)
	}
	if got := row.Beside[0].cells()[2]; got != "" {
		t.Errorf("a ratio of %q beside nothing", got)
	}
}

// TestReportWithoutRatio is written though a figure beside is nothing, of which there is no ratio.
func TestReportWithoutRatio(t *testing.T) {
	row := pairOf("idle", "%", "baseline proxy", []float64{0.2, 0, 0.1}, []float64{0, 0, 0})
	dir := t.TempDir()
	if err := (&Report{Suite: "idle", Rows: []Row{row}}).Write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "idle.json"))
	if err != nil || !strings.Contains(string(b), `"rounds"`) || strings.Contains(string(b), `"ratio"`) {
		t.Errorf("%v: %s", err, b)
	}
}

// TestReadOldBaseline: a report that names the baseline proxy by its old name is read with the new one.
func TestReadOldBaseline(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte(`{"suite":"x","rows":[{"beside":[{"of":"floor"}],"goals":[{"goal":"≤ 1.5 × floor","met":"yes","beside":"floor"}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Read(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	if row := r.Rows[0]; row.Beside[0].Of != Baseline || row.Goals[0] != (Reached{"≤ 1.5 × baseline proxy", "yes", Baseline}) {
		t.Errorf("got %+v", row)
	}
}
