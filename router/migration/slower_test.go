package migration

import (
	"testing"
	"time"

	"pdrouter/router/fleet"
)

// TestMoveWhileHandOffsTakeNothing: a move at a time when hand-offs are thought to take no time does not have all later ones look slow.
func TestMoveWhileHandOffsTakeNothing(t *testing.T) {
	s := newPinning(t, 1000).s
	p, m, from, to := NewPlans(), s.Fleet.Models["m"], s.Fleet.Engines[0], s.Fleet.Engines[1]
	for range 400 {
		m.Forecast.Moved(0, from.Forecast(), to.Forecast(), 1000, 1e-9)
	}
	now := time.Now()
	p.Ended(&Planned{From: from, To: to, IDs: make([]uint32, 1000), s: s, c: &conversation{model: "m"}, role: fleet.Decode, began: now}, Moved, now.Add(100*time.Millisecond))
	if p.slower > 10 {
		t.Errorf("moves are thought to take %g times as long as usual after one of 0.1 s", p.slower)
	}
}
