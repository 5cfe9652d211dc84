package health

import (
	"testing"
	"time"
)

func TestDemandHalvesEachMinute(t *testing.T) {
	var d DecayingCounter
	now := time.Unix(60_000, 0)
	if d.Count(now) != 0 {
		t.Error("the zero value counts")
	}
	for range 100 {
		d.Add(now)
	}
	for i, want := range []int{100, 50, 25, 12, 6} {
		if got := d.Count(now.Add(time.Duration(i) * time.Minute)); got != want {
			t.Errorf("after %d minutes: %d; want %d", i, got, want)
		}
	}
	d.Add(now.Add(2 * time.Minute))
	if got := d.Count(now.Add(2 * time.Minute)); got != 26 {
		t.Errorf("got %d; want what was left and one", got)
	}
	if got := d.Count(now.Add(-time.Hour)); got != 26 { // the clock was set back
		t.Errorf("got %d; want 26", got)
	}
	if got := d.Count(now.Add(time.Hour)); got != 0 {
		t.Errorf("after an hour: %d", got)
	}
	if n := testing.AllocsPerRun(100, func() { d.Add(now) }); n != 0 {
		t.Errorf("add allocates %v times", n)
	}
}
