package overhead

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/report"
)

// TestNotBusy: a rate with a CPU that was not busy is not that router's.
func TestNotBusy(t *testing.T) {
	figure := func(of string, x float64) report.Figure {
		return report.Figure{Of: of, Spread: report.Spread{Median: x}}
	}
	rows := []report.Row{
		{Name: "a", What: cpuMetric, Ours: figure(report.Us, 100), Beside: []report.Figure{figure("nginx", 40), {Of: "absent", Cannot: "not installed"}}},
		{Name: "a", What: rateMetric, Ours: figure(report.Us, 9000), Beside: []report.Figure{figure("nginx", 10000), {Of: "absent", Cannot: "not installed"}}},
		{Name: "b", What: cpuMetric, Ours: figure(report.Us, 10)},
	}
	if d := cmp.Diff([]string{"nginx of a 0.40"}, notBusy(rows)); d != "" {
		t.Error(d)
	}
}
