package monitor

import (
	"testing"
	"time"
)

// TestAligned has many engines' next checks fall on few moments, none behind what was drawn.
func TestAligned(t *testing.T) {
	const every, step = 2 * time.Second, 2 * time.Second / bundles
	moments := map[time.Time]bool{}
	for i := range 1000 {
		now := time.Unix(1700000000, int64(i)*1e6)
		d := every - every/8 + time.Duration(i)*every/4/1000
		got := aligned(now, d, step)
		if got > d || got < d-step {
			t.Fatalf("%v drawn, %v waited; want no more, and no less by more than %v", d, got, step)
		}
		moments[now.Add(got)] = true
	}
	if most := 9; len(moments) > most {
		t.Errorf("1,000 checks in 1.5 s fall on %d moments; want at most %d", len(moments), most)
	}
	if got := aligned(time.Unix(0, 0).Add(99*time.Millisecond), 10*time.Millisecond, 100*time.Millisecond); got != 5*time.Millisecond {
		t.Errorf("a short pause became %v", got)
	}
}
