package report

import (
	"math"
	"slices"
	"time"
)

// Spread is the smallest, the middle and the largest of some figures.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// SpreadOf summarises figures. The median of an even number of figures is the mean of the middle two. Of none at all
// every field is not a number.
func SpreadOf(figures []float64) Spread {
	if len(figures) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(figures))
	half := len(sorted) / 2
	median := sorted[half]
	if len(sorted)%2 == 0 {
		median = (sorted[half-1] + sorted[half]) / 2
	}
	return Spread{sorted[0], median, sorted[len(sorted)-1]}
}

// above is the median of what figures are more than so many times others, round by round.
func above(figures, others []float64, times float64) float64 {
	each := make([]float64, min(len(figures), len(others)))
	for i := range each {
		each[i] = figures[i] - times*others[i]
	}
	return SpreadOf(each).Median
}

// ratios summarises b over a, pair by pair: both of a pair were measured in the same round, so what slows the machine for a while
// slows both. The quotient of two medians would not have that.
func ratios(a, b []float64) Spread {
	each := make([]float64, min(len(a), len(b)))
	for i := range each {
		each[i] = b[i] / a[i]
	}
	return SpreadOf(each)
}

// InMicros is a time in µs.
func InMicros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Millis is a time in ms.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
