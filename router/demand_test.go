package router

import (
	"testing"
	"time"
)

func TestDemandHalvesEachMinute(t *testing.T) {
	var d demand
	now := time.Unix(60_000, 0)
	if d.count(now) != 0 {
		t.Error("the zero value counts")
	}
	for range 100 {
		d.add(now)
	}
	for i, want := range []int{100, 50, 25, 12, 6} {
		if got := d.count(now.Add(time.Duration(i) * time.Minute)); got != want {
			t.Errorf("after %d minutes: %d; want %d", i, got, want)
		}
	}
	d.add(now.Add(2 * time.Minute))
	if got := d.count(now.Add(2 * time.Minute)); got != 26 {
		t.Errorf("got %d; want what was left and one", got)
	}
	if got := d.count(now.Add(-time.Hour)); got != 26 { // the clock was set back
		t.Errorf("got %d; want 26", got)
	}
	if got := d.count(now.Add(time.Hour)); got != 0 {
		t.Errorf("after an hour: %d", got)
	}
	if n := testing.AllocsPerRun(100, func() { d.add(now) }); n != 0 {
		t.Errorf("add allocates %v times", n)
	}
}
