package fleet

import (
	"errors"
	"log/slog"
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

// TestRevisionsAreNotMixed: engines of different revisions are never a pair, whatever else is known of them. One without a revision fits all.
func TestRevisionsAreNotMixed(t *testing.T) {
	engine := func(name, revision string) config.Engine {
		return config.Engine{Name: name, URL: "http://" + name + ":1", Revision: revision}
	}
	for _, conn := range []string{connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		records := engineRecords{}
		m := config.Model{Name: "m", Connector: conn}
		for _, revision := range []string{"", "1", "2"} {
			p, d := engine("p"+revision, revision), engine("d"+revision, revision)
			m.Prefill, m.Decode = append(m.Prefill, p), append(m.Decode, d)
			records.publish(p.Name, metadata.Prefill, "same")
			records.publish(d.Name, metadata.Decode, "same")
		}
		f := fleetOf(t, config.Config{Models: []config.Model{m}}, Parts{Records: records, Log: slog.New(slog.DiscardHandler)}, nil)
		for _, c := range f.Models["m"].Pairs {
			x, y := c.Prefill.Origin.Entry.Revision, c.Decode.Origin.Entry.Revision
			err := f.Compatible(c)
			if x != "" && y != "" && x != y {
				var why *metadata.Unpairable
				if !errors.As(err, &why) || why.Reason != metadata.OtherRevision {
					t.Errorf("%s: %s with %s: %v; want another revision", conn, c.Prefill.Name, c.Decode.Name, err)
				}
			} else if err != nil {
				t.Errorf("%s: %s with %s: %v", conn, c.Prefill.Name, c.Decode.Name, err)
			}
		}
	}
}
