package router

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
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

// TestJudgedAgain: engines are judged once, and again as soon as one publishes other content, be it of the same run. What is
// wrong is said once, however often it is renewed.
func TestJudgedAgain(t *testing.T) {
	records := &fakeRecords{m: map[string][]metadata.Record{}}
	records.publish("p", metadata.Prefill, 1, "same")
	records.publish("d", metadata.Decode, 1, "same")
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NameKVPlane, Prefill: []config.Engine{{Name: "p", URL: "http://p:1"}}, Decode: []config.Engine{{Name: "d", URL: "http://d:1"}}}}}
	var log strings.Builder
	r, err := New(cfg, Parts{Records: records, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := r.Debug().Pair(0)
	for _, row := range []struct {
		digest string
		fits   bool
	}{{"same", true}, {"other", false}, {"other", false}, {"same", true}} {
		records.publish("d", metadata.Decode, 1, row.digest)
		if err := c.Agree(); (err == nil) != row.fits {
			t.Errorf("digest %q: %v", row.digest, err)
		}
		if n := testing.AllocsPerRun(100, func() { _ = c.Agree() }); n != 0 {
			t.Errorf("digest %q: %v allocations where nothing has changed", row.digest, n)
		}
	}
	if n := strings.Count(log.String(), "engines cannot be paired"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}
