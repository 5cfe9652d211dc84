package report

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestStagesAddUp: whatever came when, and whatever was not reached, the stages up to the first token add up to its time, and all to the
// total.
func TestStagesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		var p Phases
		first := time.Duration(1 + r.IntN(1000))
		for _, to := range []*time.Duration{&p.Admit, &p.Queue, &p.Retry, &p.Plan, &p.Pair, &p.Prefill, &p.Transfer} {
			if r.IntN(3) > 0 {
				*to = time.Duration(r.IntN(1500)) // some are reported after the first token
			}
		}
		p.FirstToken, p.Total = first, first+time.Duration(r.IntN(1000))
		if r.IntN(2) > 0 {
			p.Joined = first + time.Duration(r.Int64N(int64(p.Total-first+1)))
		}
		sum := time.Duration(0)
		for i, took := range p.Stages() {
			if took < -1 || took == -1 && Stage(i) >= StageFirstToken && (Stage(i) != StageJoin || p.Joined > 0) {
				t.Fatalf("%v: stage %v takes %v", p, Stage(i), took)
			}
			if sum += max(0, took); Stage(i) == StageFirstToken && sum != first {
				t.Fatalf("%v: the stages up to the first token take %v", p, sum)
			}
		}
		if sum != p.Total {
			t.Fatalf("%v: all stages take %v", p, sum)
		}
	}
}
