package load

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answered is a whole answer whose chunks came at these times.
func answered(at time.Duration, chunks ...time.Duration) Outcome {
	return Outcome{Arrival: Arrival{At: at, Tokens: len(chunks)}, Sent: at + ms, Ended: slices.Max(chunks) + ms, Status: 200, Chunks: chunks, Counted: len(chunks), Whole: true}
}

// TestMoments: the figures of a request as `vllm bench serve` defines them, from the intended time.
func TestMoments(t *testing.T) {
	o := answered(100*ms, 350*ms, 360*ms, 420*ms, 450*ms)
	if o.Ttft() != 250*ms || o.e2el() != 350*ms || o.tpot() != 100*ms/3 {
		t.Errorf("ttft %v, e2el %v, tpot %v", o.Ttft(), o.e2el(), o.tpot())
	}
	// Two tokens of a chunk count in TPOT and are one gap in ITL.
	o.Counted, o.Tokens = 5, 5
	one := answered(0, 30*ms)
	sum := Summarise([]Outcome{o, one}, SLO{})
	if o.tpot() != 25*ms || one.tpot() != 0 || sum.Tpot.mean != 25*ms {
		t.Errorf("tpot %v, of one token %v, mean %v: one token has none", o.tpot(), one.tpot(), sum.Tpot.mean)
	}
	if !nearly(sum.Itl.P50, 30*ms) || !nearly(sum.Itl.p90, 54*ms) { // of 10, 30 and 60
		t.Errorf("itl %+v", sum.Itl)
	}
	if sum.Late.P99 != ms || sum.elapsed != 451*ms || sum.tokens != 6 || sum.Whole != 2 {
		t.Errorf("%+v", sum)
	}
}

// TestQuantiles: as numpy.percentile gives them.
func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct {
		times []time.Duration
		want  Quantiles
	}{
		"none": {nil, Quantiles{}},
		"one":  {[]time.Duration{7}, Quantiles{7, 7, 7, 7}},
		"many": {[]time.Duration{400, 100, 300, 200, 500}, Quantiles{300, 300, 460, 496}},
		"even": {[]time.Duration{1000, 2000}, Quantiles{1500, 1500, 1900, 1990}},
	} {
		t.Run(name, func(t *testing.T) {
			was := slices.Clone(c.times)
			if d := cmp.Diff(c.want, QuantilesOf(c.times), cmp.AllowUnexported(Quantiles{})); d != "" || !slices.Equal(was, c.times) {
				t.Error(d, c.times)
			}
		})
	}
}

// nearly reports whether a quantile of a histogram is that of the times.
func nearly(got, want time.Duration) bool { return got <= want && got >= want-want/1024-1 }

// TestHistogram: quantiles are those of the times but for 0.1 %, and small times are exact.
func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := 1; n < 300; n++ {
		var h histogram
		var times []time.Duration
		most := 1 + rng.Int64N(1<<(1+rng.IntN(44)))
		for range n {
			times = append(times, time.Duration(rng.Int64N(most)))
			h.add(times[len(times)-1])
		}
		got, want := h.quantiles(), QuantilesOf(times)
		if !nearly(got.P50, want.P50) || !nearly(got.p90, want.p90) || !nearly(got.P99, want.P99) || got.mean != want.mean && n < 50 {
			t.Fatalf("%d times below %d: got %+v; want %+v", n, most, got, want)
		}
	}
	var none histogram
	if none.quantiles() != (Quantiles{}) {
		t.Errorf("of none: %+v", none.quantiles())
	}
}

// TestGoodput: good is who meets all bounds, of those with a whole answer, over the time of the run.
func TestGoodput(t *testing.T) {
	cut := answered(0, ms)
	cut.Whole, cut.Err = false, errors.New("cut")
	busy := Outcome{Status: 429, Ended: 2 * ms, Err: errors.New("status 429")}
	wrong := answered(0, ms, 2*ms)
	wrong.Tokens = 3
	outcomes := []Outcome{
		answered(0, 100*ms, 140*ms),                              // good
		answered(0, 101*ms, 140*ms),                              // first token too late
		answered(0, 100*ms, 151*ms),                              // tokens too slow
		answered(499*ms, 599*ms, 624*ms, 649*ms, 649*ms, 999*ms), // too long altogether
		cut, busy, wrong,
	}
	bound := SLO{Ttft: 100 * ms, Tpot: 50 * ms, e2el: 400 * ms}
	sum := Summarise(outcomes, bound)
	if sum.Good != 1 || sum.Goodput() != 1 || sum.Whole != 4 || sum.failed != 2 || sum.refused != 1 {
		t.Errorf("%+v", sum)
	}
	if sum = Summarise(outcomes, SLO{Ttft: time.Second}); sum.Good != 4 {
		t.Errorf("%d are good; want all whole ones where nothing else is bound", sum.Good)
	}
	if err := sum.Verdict(true); !errors.Is(err, ErrVoid) || !strings.Contains(err.Error(), "2 failed and 1 were refused") || !strings.Contains(err.Error(), "cut") {
		t.Errorf("got %v", err)
	}
	if err := Summarise([]Outcome{busy}, bound).Verdict(false); !errors.Is(err, ErrVoid) {
		t.Errorf("got %v; want a void run", err)
	}
	if err := Summarise(nil, bound).Verdict(true); !errors.Is(err, ErrVoid) {
		t.Errorf("got %v; want a run of nothing to be void", err)
	}
}
