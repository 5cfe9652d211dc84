package fleet

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
	c := &Pair{}
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000} {
		if got := c.HandshakePause(run(1), now); got > 0 {
			t.Fatalf("failure %d: %v to wait before", i, got)
		}
		c.HandshakeBegun(run(1))
		pause := c.HandshakeEnded(run(1), broken, now, health.BreakerRules{})
		if want *= time.Millisecond; pause != want || c.HandshakePause(run(1), now) != want || !errors.Is(c.LastError(run(1)), broken) {
			t.Errorf("failure %d: pause %v; want %v", i, pause, want)
		}
		now = now.Add(pause)
	}
	c.HandshakeBegun(run(2)) // started anew: at once
	if pause := c.HandshakeEnded(run(1), broken, now, health.BreakerRules{}); pause != 0 || c.HandshakePause(run(2), now) != 0 || c.LastError(run(2)) != nil {
		t.Errorf("what the old run says counts: pause %v", pause)
	}
	if pause := c.HandshakeEnded(run(2), broken, now, health.BreakerRules{}); pause != handshakePause {
		t.Errorf("first pause of the new run is %v", pause)
	}
	c.Reset()
	if c.HandshakePause(run(2), now) != 0 {
		t.Error("not forgiven")
	}
	c.HandshakeEnded(run(2), broken, now, health.BreakerRules{})
	if c.HandshakeEnded(run(2), nil, now, health.BreakerRules{}); c.HandshakePause(run(2), now) != 0 || c.LastError(run(2)) != nil {
		t.Error("a success is not the end of failures")
	}
}
