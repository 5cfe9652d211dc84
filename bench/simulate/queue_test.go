package simulate

import (
	"context"
	"testing"
	"time"

	"pdrouter/bench/load"
	"pdrouter/internal/racetest"
)

// TestQueueUnderOverload: with requests that wait in front of engines, goodput does not fall when more is asked for than engines can do: at each rate
// it is nine tenths at least of what it is at any lower one, with a queue or without. Half of those that are refused at least are told the right time
// to come back. `pdrouter simulate --queue` prints both.
func TestQueueUnderOverload(t *testing.T) {
	if racetest.Enabled() {
		t.Skip("the race detector takes minutes for it, and sees the same goroutines in TestCostBesideOthers")
	}
	cost, err := Cost(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	queue, err := Queued(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	s := Sweep{Trace: load.MadeTrace(8000, 1), Mixes: []Mix{{"recorded", 1, 1, []float64{1, 2, 3, 4.5}}}, Systems: []System{cost, queue}, Seeds: 3, Window: 3 * time.Minute, Costs: costs(t), SLO: slo}
	rows, err := s.Run(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	peak, without := 0.0, 0.0
	for _, r := range rows { // cost comes before its queue
		if peak = max(peak, r.Goodput); r.Goodput > r.Rate {
			t.Fatalf("at %g/s %.2f requests a second keep their objective: more than come", r.Rate, r.Goodput)
		}
		switch {
		case r.Policy != queued:
			without = r.Goodput
		case r.Goodput < .9*peak:
			t.Errorf("at %g/s %.2f requests a second keep their objective; want at least .9 of %.2f", r.Rate, r.Goodput, peak)
		case r.Refused > 0 && r.RetryRight < .5:
			t.Errorf("at %g/s a part of %.2f of the refused is told the right time to come back; want at least .5", r.Rate, r.RetryRight)
		case r.Rate == 1 && r.Refused > .1:
			t.Errorf("at %g/s a part of %.3f is refused", r.Rate, r.Refused)
		case r.Rate == 4.5 && r.Goodput < 1.5*without:
			t.Errorf("at %g/s %.2f requests a second keep their objective, %.2f without a queue", r.Rate, r.Goodput, without)
		}
	}
}
