package router

import (
	"errors"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
)

func TestCoupleBacksOff(t *testing.T) {
	run := func(generation uint64) metadata.Pair {
		return metadata.Pair{Prefill: metadata.Incarnation{Engine: "p", Generation: generation}, Decode: metadata.Incarnation{Engine: "d", Generation: 1}}
	}
	now := time.Unix(1000, 0)
	broken := errors.New("broken")
	c := &couple{}
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000} {
		if got := c.wait(run(1), now); got > 0 {
			t.Fatalf("failure %d: %v to wait before", i, got)
		}
		c.begun(run(1))
		pause := c.ended(run(1), broken, now, health.BreakerRules{})
		if want *= time.Millisecond; pause != want || c.wait(run(1), now) != want || !errors.Is(c.last(run(1)), broken) {
			t.Errorf("failure %d: pause %v; want %v", i, pause, want)
		}
		now = now.Add(pause)
	}
	c.begun(run(2)) // started anew: at once
	if pause := c.ended(run(1), broken, now, health.BreakerRules{}); pause != 0 || c.wait(run(2), now) != 0 || c.last(run(2)) != nil {
		t.Errorf("what the old run says counts: pause %v", pause)
	}
	if pause := c.ended(run(2), broken, now, health.BreakerRules{}); pause != handshakePause {
		t.Errorf("first pause of the new run is %v", pause)
	}
	c.forgive()
	if c.wait(run(2), now) != 0 {
		t.Error("not forgiven")
	}
	c.ended(run(2), broken, now, health.BreakerRules{})
	if c.ended(run(2), nil, now, health.BreakerRules{}); c.wait(run(2), now) != 0 || c.last(run(2)) != nil {
		t.Error("a success is not the end of failures")
	}
}
