package health

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOutlier: an engine is out if it is much slower than the median for long enough; long prompts, few requests, a bad moment
// and small times are no reason, and never more than a bounded part is out.
func TestOutlier(t *testing.T) {
	rules := OutlierRules{Times: 3, After: 30 * time.Second, Ejected: 30 * time.Second, Percent: 20}
	const ms = time.Millisecond
	for _, row := range []struct {
		name    string
		engines int
		took    func(i, second int) (time.Duration, int) // how long, of how many tokens; 0: no request
		want    []int                                    // that were taken out within 100 seconds
	}{
		{"all alike", 5, func(i, _ int) (time.Duration, int) { return 400 * ms, 1000 }, nil},
		{"one is slow", 5, func(i, _ int) (time.Duration, int) {
			if i == 2 {
				return 1600 * ms, 1000
			}
			return 400 * ms, 1000
		}, []int{2}},
		{"twice is not slow", 5, func(i, _ int) (time.Duration, int) {
			if i == 2 {
				return 800 * ms, 1000
			}
			return 400 * ms, 1000
		}, nil},
		{"long prompts", 5, func(i, _ int) (time.Duration, int) {
			if i == 2 {
				return 12000 * ms, 30000
			}
			return 400 * ms, 1000
		}, nil},
		{"a bad moment", 5, func(i, second int) (time.Duration, int) {
			if i == 2 && second > 20 && second < 30 {
				return 1600 * ms, 1000
			}
			return 400 * ms, 1000
		}, nil},
		{"small times", 5, func(i, _ int) (time.Duration, int) {
			if i == 2 {
				return 40 * ms, 10
			}
			return 4 * ms, 10
		}, nil},
		{"two of two", 2, func(i, _ int) (time.Duration, int) { return time.Duration(400+4000*i) * ms, 1000 }, nil},
		{"hardly any requests", 5, func(i, second int) (time.Duration, int) {
			if i == 2 {
				if second%40 != 0 {
					return 0, 0
				}
				return 4000 * ms, 1000
			}
			return 400 * ms, 1000
		}, nil},
		{"two of five are slow, one goes", 5, func(i, _ int) (time.Duration, int) {
			if i >= 3 {
				return time.Duration(i) * 1000 * ms, 1000
			}
			return 400 * ms, 1000
		}, []int{4}},
	} {
		t.Run(row.name, func(t *testing.T) {
			paces := make([]*latency, row.engines)
			for i := range paces {
				paces[i] = new(latency)
			}
			var got []int
			now := time.Unix(1_000_000, 0)
			for second := range 100 {
				now = now.Add(time.Second)
				for i, p := range paces {
					if took, tokens := row.took(i, second); p != nil && took > 0 {
						p.note(took, tokens, now)
					}
				}
				if i := outlier(paces, now, rules); i >= 0 {
					if second < 30 {
						t.Errorf("out after %d s", second)
					}
					got, paces[i] = append(got, i), nil
				}
			}
			if len(got) != len(row.want) || len(got) > 0 && got[0] != row.want[0] {
				t.Errorf("out: %v; want %v", got, row.want)
			}
		})
	}
}

// TestOutlierProperties: whatever the times, no more engines are out at once than may be, and none that is not slow.
func TestOutlierProperties(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		percent := rng.IntN(101)
		rules := OutlierRules{Times: 1.5 + 3*rng.Float64(), After: time.Duration(1+rng.IntN(20)) * time.Second, Percent: percent}
		paces := make([]*latency, 1+rng.IntN(8))
		speed := make([]float64, len(paces))
		for i := range paces {
			paces[i], speed[i] = new(latency), rng.ExpFloat64()
		}
		now, out := time.Unix(1_000_000, 0), 0
		for range 60 {
			now = now.Add(time.Second)
			for i, p := range paces {
				if p != nil && rng.IntN(4) > 0 {
					p.note(time.Duration(speed[i]*float64(time.Second)), 100+rng.IntN(1000), now)
				}
			}
			i := outlier(paces, now, rules)
			if i < 0 {
				continue
			}
			faster := 0
			for j, p := range paces {
				if p != nil && j != i && p.n >= leastPaced && paces[i].mean > rules.Times*p.mean {
					faster++
				}
			}
			if faster == 0 || now.Sub(paces[i].since) < rules.After {
				t.Fatalf("seed %d: engine %d is out, %+v", seed, i, paces[i])
			}
			paces[i] = nil
			out++
		}
		if percent == 0 && out > 0 || out > max(1, len(paces)*percent/100) {
			t.Fatalf("seed %d: %d of %d engines are out; %d percent may be", seed, out, len(paces), percent)
		}
	}
}
