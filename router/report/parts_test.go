package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func partNames(s *Summary) (names []string) {
	for _, p := range s.FirstTokenParts() {
		name := p.Part
		if p.Estimated {
			name = "~" + name
		}
		names = append(names, name)
	}
	return names
}

// TestFirstTokenParts: which parts there are, and which of them are estimated.
func TestFirstTokenParts(t *testing.T) {
	const ms = time.Millisecond
	split := Phases{Admit: ms, Plan: 2 * ms, Pair: 3 * ms, Prefill: 103 * ms, FirstToken: 133 * ms}
	plane := split
	plane.Transfer = 113 * ms
	for name, row := range map[string]struct {
		s    Summary
		est  [3]float64
		want []string
		took []time.Duration
	}{
		"nothing came":     {Summary{Phases: Phases{Admit: ms, Total: 2 * ms}}, [3]float64{}, nil, nil},
		"no speeds":        {Summary{Phases: split}, [3]float64{}, []string{"gateway_queue", "prefill", "decode"}, []time.Duration{3 * ms, 100 * ms, 30 * ms}},
		"speeds":           {Summary{Phases: split}, [3]float64{.08, .015, .005}, []string{"gateway_queue", "~prefill_queue", "~prefill_compute", "~transfer", "~decode_queue", "~first_step"}, []time.Duration{3 * ms, 20 * ms, 80 * ms, 10 * ms, 15 * ms, 5 * ms}},
		"the plane":        {Summary{Phases: plane}, [3]float64{.2, .5, .005}, []string{"gateway_queue", "~prefill_queue", "~prefill_compute", "transfer", "~decode_queue", "~first_step"}, []time.Duration{3 * ms, 0, 100 * ms, 10 * ms, 15 * ms, 5 * ms}},
		"the plane, alone": {Summary{Phases: plane}, [3]float64{}, []string{"gateway_queue", "prefill", "transfer", "decode"}, []time.Duration{3 * ms, 100 * ms, 10 * ms, 20 * ms}},
		"a slow pair":      {Summary{Phases: split}, [3]float64{}, []string{"gateway_queue", "prefill", "~transfer", "~decode"}, []time.Duration{3 * ms, 100 * ms, 24 * ms, 6 * ms}},
		"slow, and speeds": {Summary{Phases: split}, [3]float64{.08, .015, .005}, []string{"gateway_queue", "~prefill_queue", "~prefill_compute", "~transfer", "~decode_queue", "~first_step"}, []time.Duration{3 * ms, 20 * ms, 80 * ms, 24 * ms, ms, 5 * ms}},
		"slow, the plane":  {Summary{Phases: plane}, [3]float64{}, []string{"gateway_queue", "prefill", "transfer", "decode"}, []time.Duration{3 * ms, 100 * ms, 10 * ms, 20 * ms}},
		"not split":        {Summary{Phases: Phases{Admit: ms, Plan: 2 * ms, FirstToken: 102 * ms}}, [3]float64{.06}, []string{"gateway_queue", "~prefill_queue", "~prefill_compute"}, []time.Duration{2 * ms, 40 * ms, 60 * ms}},
	} {
		row.s.Estimate(row.est[0], row.est[1], row.est[2])
		if strings.Contains(name, "slow") {
			row.s.EstimateTransfer(24 * ms)
		}
		if got := partNames(&row.s); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v; want %v", name, got, row.want)
			continue
		}
		for i, p := range row.s.FirstTokenParts() {
			if math.Abs(p.Seconds-row.took[i].Seconds()) > 3e-4 {
				t.Errorf("%s: %s took %v s; want %v", name, p.Part, p.Seconds, row.took[i])
			}
		}
	}
}

// TestFirstTokenPartsAddUp: whatever is seen and thought, no part is below 0 and their sum is the time to the first token.
func TestFirstTokenPartsAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var s Summary
		at := time.Duration(0)
		for _, p := range []*time.Duration{&s.Phases.Admit, &s.Phases.Queue, &s.Phases.Retry, &s.Phases.Plan, &s.Phases.Pair, &s.Phases.Prefill, &s.Phases.Transfer, &s.Phases.FirstToken} {
			if at += time.Duration(r.Int64N(int64(time.Second))); r.IntN(4) > 0 || p == &s.Phases.FirstToken {
				*p = at
			}
		}
		if r.IntN(4) == 0 { // reported after the first token
			s.Phases.Transfer = at + time.Second
		}
		if r.IntN(4) > 0 {
			s.Estimate(float64(r.IntN(2))*r.Float64()*3, float64(r.IntN(2))*r.Float64()*3, float64(r.IntN(2))*r.Float64()*3)
		}
		if r.IntN(4) == 0 {
			s.EstimateTransfer(time.Duration(r.Int64N(int64(2 * time.Second))))
		}
		sum := 0.0
		for _, p := range s.FirstTokenParts() {
			if p.Seconds < 0 {
				t.Fatalf("%+v: %s takes %v s", s.Phases, p.Part, p.Seconds)
			}
			sum += p.Seconds
		}
		if math.Abs(sum-s.Phases.FirstToken.Seconds()) > 1e-6 {
			t.Fatalf("%+v, %+v: the parts add up to %v s; want %v", s.Phases, s.estimates, sum, s.Phases.FirstToken)
		}
	}
}
