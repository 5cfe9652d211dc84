package harness

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/report"
)

// always is a system whose rounds give the same figure.
func always(of string, figure float64) System {
	return System{Of: of, Round: func(context.Context, time.Duration) (Sample, error) {
		return Sample{Figures: []float64{figure}, Done: 1}, nil
	}}
}

func figures(t *testing.T, c Comparison, cfg Config) []report.Row {
	t.Helper()
	rows, err := c.Measure(t.Context(), cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestComparison: each system has its rounds, none of them the one that warms up, and a ratio of pdrouter's to its own.
func TestComparison(t *testing.T) {
	rounds := 0
	counted := System{Of: report.Us, Round: func(context.Context, time.Duration) (Sample, error) {
		rounds++
		return Sample{Figures: []float64{float64(rounds), 7}, Done: 1}, nil
	}}
	other := System{Of: "baseline proxy", Round: func(context.Context, time.Duration) (Sample, error) {
		return Sample{Figures: []float64{2, 14}, Done: 1}, nil
	}}
	rows := figures(t, Comparison{Name: "x", Metrics: []Metric{{What: "a"}, {What: "b"}}, Systems: []System{counted, other}}, Config{Rounds: 3})
	if d := cmp.Diff([]float64{2, 3, 4}, rows[0].Ours.Rounds); d != "" {
		t.Error(d)
	}
	if r := rows[1].Beside[0].Ratio; r == nil || r.Median != 0.5 || rows[0].Done != 6 {
		t.Errorf("got %+v; want a ratio of 0.5 and 6 done", rows)
	}
}

// TestComparisonRepeats: a disturbed round is measured again, and so often only.
func TestComparisonRepeats(t *testing.T) {
	busy := 3
	c := Comparison{Name: "x", Metrics: []Metric{{}}, Systems: []System{{Of: report.Us, Round: func(context.Context, time.Duration) (Sample, error) {
		if busy--; busy >= 0 {
			return Sample{Disturbance: Disturbance{others: 0.5}, Figures: []float64{99}}, nil
		}
		return Sample{Figures: []float64{1}}, nil
	}}}}
	rows := figures(t, c, Config{Rounds: 2, Others: 0.1, Refuse: 5})
	if d := cmp.Diff([]float64{1, 1}, rows[0].Ours.Rounds); d != "" || rows[0].Repeated != 2 { // the first was the warm-up
		t.Errorf("%s; repeated %d, want 2", d, rows[0].Repeated)
	}
	busy = 100
	if _, err := c.Measure(t.Context(), Config{Rounds: 2, Others: 0.1, Refuse: 5}, io.Discard); err == nil || !strings.Contains(err.Error(), "too busy") {
		t.Errorf("got %v; want too busy", err)
	}
}

// TestComparisonPeerFails: a peer that fails has no figure and a reason; pdrouter's failure ends the run.
func TestComparisonPeerFails(t *testing.T) {
	bad := errors.New("an answer is cut\nand more")
	left := 2
	fails := System{Of: "peer", Peer: true, Round: func(context.Context, time.Duration) (Sample, error) {
		if left--; left < 0 {
			return Sample{}, bad
		}
		return Sample{Figures: []float64{1}}, nil
	}}
	rows := figures(t, Comparison{Metrics: []Metric{{Goals: []report.Goal{{Beside: report.BestPeer, Times: 1}}}}, Systems: []System{always(report.Us, 1), fails}}, Config{Rounds: 3})
	if f := rows[0].Beside[0]; f.Cannot != "failed: an answer is cut" || f.Rounds != nil || rows[0].Goals[0].Met != "" {
		t.Errorf("got %+v; want no figure and the reason", rows[0])
	}
	left, fails.Peer = 0, false
	if _, err := (Comparison{Metrics: []Metric{{}}, Systems: []System{always(report.Us, 1), fails}}).Measure(t.Context(), Config{Rounds: 1}, io.Discard); !errors.Is(err, bad) {
		t.Errorf("got %v; want the failure", err)
	}
}

// TestComparisonOnly: a system with one metric stands in that row alone.
func TestComparisonOnly(t *testing.T) {
	ceiling := System{Of: "ceiling", Only: "b", Round: func(context.Context, time.Duration) (Sample, error) {
		return Sample{Figures: []float64{0, 3}}, nil
	}}
	both := System{Of: report.Us, Round: func(context.Context, time.Duration) (Sample, error) { return Sample{Figures: []float64{1, 6}}, nil }}
	rows := figures(t, Comparison{Metrics: []Metric{{What: "a"}, {What: "b"}}, Systems: []System{both, ceiling}}, Config{Rounds: 1})
	if len(rows[0].Beside) != 0 || len(rows[1].Beside) != 1 || rows[1].Beside[0].Ratio.Median != 2 {
		t.Errorf("got %+v; want the ceiling in the second row alone", rows)
	}
}

// TestOrder: of two systems each begins every other round; of more all take part in every round, and none always first.
func TestOrder(t *testing.T) {
	for round, want := range [][]int{{0, 1}, {1, 0}, {0, 1}, {1, 0}} {
		if d := cmp.Diff(want, order(round, 2)); d != "" {
			t.Error(d)
		}
	}
	first := map[int]int{}
	for round := range 100 {
		got := order(round, 5)
		first[got[0]]++
		if d := cmp.Diff([]int{0, 1, 2, 3, 4}, slices.Sorted(slices.Values(got))); d != "" {
			t.Error(d)
		}
	}
	for i := range 5 {
		if first[i] < 5 {
			t.Errorf("system %d is first in %d rounds of 100", i, first[i])
		}
	}
}
