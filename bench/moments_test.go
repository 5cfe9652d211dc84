package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answered is a whole answer whose chunks came at these times.
func answered(at time.Duration, chunks ...time.Duration) outcome {
	return outcome{arrival: arrival{at: at, tokens: len(chunks)}, sent: at + ms, ended: slices.Max(chunks) + ms, status: 200, chunks: chunks, counted: len(chunks), whole: true}
}

// TestMoments: the figures of a request as `vllm bench serve` defines them, from the intended time.
func TestMoments(t *testing.T) {
	o := answered(100*ms, 350*ms, 360*ms, 420*ms, 450*ms)
	if o.ttft() != 250*ms || o.e2el() != 350*ms || o.tpot() != 100*ms/3 {
		t.Errorf("ttft %v, e2el %v, tpot %v", o.ttft(), o.e2el(), o.tpot())
	}
	// Two tokens of a chunk count in TPOT and are one gap in ITL.
	o.counted, o.tokens = 5, 5
	one := answered(0, 30*ms)
	sum := summarise([]outcome{o, one}, slo{})
	if o.tpot() != 25*ms || one.tpot() != 0 || sum.tpot.mean != 25*ms {
		t.Errorf("tpot %v, of one token %v, mean %v: one token has none", o.tpot(), one.tpot(), sum.tpot.mean)
	}
	if sum.itl.p50 != 30*ms || sum.itl.p90 != 54*ms { // of 10, 30 and 60
		t.Errorf("itl %+v", sum.itl)
	}
	if sum.late.p99 != ms || sum.elapsed != 451*ms || sum.tokens != 6 || sum.whole != 2 {
		t.Errorf("%+v", sum)
	}
}

// TestQuantiles: as numpy.percentile gives them.
func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct {
		times []time.Duration
		want  quantiles
	}{
		"none": {nil, quantiles{}},
		"one":  {[]time.Duration{7}, quantiles{7, 7, 7, 7}},
		"many": {[]time.Duration{400, 100, 300, 200, 500}, quantiles{300, 300, 460, 496}},
		"even": {[]time.Duration{1000, 2000}, quantiles{1500, 1500, 1900, 1990}},
	} {
		t.Run(name, func(t *testing.T) {
			was := slices.Clone(c.times)
			if d := cmp.Diff(c.want, quantilesOf(c.times), cmp.AllowUnexported(quantiles{})); d != "" || !slices.Equal(was, c.times) {
				t.Error(d, c.times)
			}
		})
	}
}

// TestGoodput: good is who meets all bounds, of those with a whole answer, over the time of the run.
func TestGoodput(t *testing.T) {
	cut := answered(0, ms)
	cut.whole, cut.err = false, errors.New("cut")
	busy := outcome{status: 429, ended: 2 * ms, err: errors.New("status 429")}
	wrong := answered(0, ms, 2*ms)
	wrong.tokens = 3
	outcomes := []outcome{
		answered(0, 100*ms, 140*ms),                              // good
		answered(0, 101*ms, 140*ms),                              // first token too late
		answered(0, 100*ms, 151*ms),                              // tokens too slow
		answered(499*ms, 599*ms, 624*ms, 649*ms, 649*ms, 999*ms), // too long altogether
		cut, busy, wrong,
	}
	bound := slo{ttft: 100 * ms, tpot: 50 * ms, e2el: 400 * ms}
	sum := summarise(outcomes, bound)
	if sum.good != 1 || sum.goodput() != 1 || sum.whole != 4 || sum.failed != 2 || sum.refused != 1 {
		t.Errorf("%+v", sum)
	}
	if sum = summarise(outcomes, slo{ttft: time.Second}); sum.good != 4 {
		t.Errorf("%d are good; want all whole ones where nothing else is bound", sum.good)
	}
	if err := sum.verdict(true); !errors.Is(err, errVoid) || !strings.Contains(err.Error(), "2 failed and 1 were refused") || !strings.Contains(err.Error(), "cut") {
		t.Errorf("got %v", err)
	}
	if err := summarise([]outcome{busy}, bound).verdict(false); !errors.Is(err, errVoid) {
		t.Errorf("got %v; want a void run", err)
	}
	if err := summarise(nil, bound).verdict(true); !errors.Is(err, errVoid) {
		t.Errorf("got %v; want a run of nothing to be void", err)
	}
}
