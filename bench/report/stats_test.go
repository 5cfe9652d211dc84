package report

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	for name, c := range map[string]struct {
		figures []float64
		want    Spread
	}{
		"one":                      {[]float64{3}, Spread{3, 3, 3}},
		"odd":                      {[]float64{9, 1, 4}, Spread{1, 4, 9}},
		"even: mean of the middle": {[]float64{10, 1, 4, 2}, Spread{1, 3, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			was := append([]float64(nil), c.figures...)
			if d := cmp.Diff(c.want, SpreadOf(c.figures)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(was, c.figures); d != "" {
				t.Errorf("the figures were changed: %s", d)
			}
		})
	}
	if got := SpreadOf(nil); !math.IsNaN(got.Median) {
		t.Errorf("no figures: got %v; want NaN", got)
	}
}

func TestRatiosArePairedNotAQuotientOfMedians(t *testing.T) {
	baseline, gateway := []float64{10, 100, 20}, []float64{20, 200, 50}
	if d := cmp.Diff(Spread{2, 2, 2.5}, ratios(baseline, gateway)); d != "" {
		t.Error(d)
	}
}
