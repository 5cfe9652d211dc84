package router

import (
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestLongAnswer generates for longer than a transfer and a first token may take: an answer that is not streamed is
// none the worse for that, and nobody is blamed.
func TestLongAnswer(t *testing.T) {
	for _, row := range []struct {
		name      string
		connector string
		leg       string
		control   bool
		transfer  time.Duration
	}{
		{"alone", connector.NameNone, "alone", false, 50 * time.Millisecond},
		{"push", connector.NamePush, "decode", false, 50 * time.Millisecond},
		{"pull", connector.NamePull, "decode", false, 50 * time.Millisecond},
		{"plane", connector.NameKVPlane, "decode", true, time.Second}, // in which the events come
		{"plane without events", connector.NameKVPlane, "decode", false, 50 * time.Millisecond},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s, parts := newPool(t, row.connector, 1, 1, nil), Parts{}
			if row.connector == connector.NameKVPlane {
				s, _, parts = newPlane(t, 1, 1)
			}
			if !row.control && row.connector == connector.NameKVPlane {
				s.cfg.Models[0].Prefill[0].Control, s.cfg.Models[0].Decode[0].Control = "", ""
			}
			s.cfg.Timeouts.Transfer, s.cfg.Timeouts.Request = row.transfer, 2*row.transfer
			g := start(t, s.cfg, parts)
			if row.connector == connector.NamePush || row.connector == connector.NameKVPlane {
				g.warmed()
			}
			if row.control {
				g.followed()
			}
			s.setFaults(map[string][]fault{"decode-0": {{Leg: row.leg, Do: doSlow, N: 5 * int(row.transfer.Milliseconds()) / 2}}})
			r := g.post(pathCompletions, plainBody)
			if r.Status != 200 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			if got, _ := text(t, r); got != wholeText {
				t.Errorf("text %q", got)
			}
			if sum := g.last(1); sum.Attempts != 1 || sum.Outcome != report.Completed {
				t.Errorf("%d attempts, %s; want 1, completed", sum.Attempts, sum.Outcome)
			}
			g.settled()
			s.noHeld(t)
		})
	}
}

// TestFault54SilentWrite has stock prefill answer and write nothing: of an answer that is not streamed nothing is known
// before its whole time is over.
func TestFault54SilentWrite(t *testing.T) {
	s := newPool(t, connector.NamePush, 1, 1, nil)
	s.cfg.Timeouts.Answer = time.Second
	g := start(t, s.cfg, Parts{})
	g.warmed()
	s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doNeverKV}}})
	r := g.post(pathCompletions, plainBody)
	if got := r.Header.Get("X-Pdrouter-Reason"); r.Status != 504 || got != "deadline" {
		t.Errorf("status %d, reason %q; want 504, deadline", r.Status, got)
	}
}

// TestFault58LongAnswer has the client of a long answer leave: decode is given the time of a transfer, not that of an
// answer that nobody reads.
func TestFault58LongAnswer(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		t.Run(connectorName, func(t *testing.T) {
			s := newPool(t, connectorName, 1, 1, nil)
			s.cfg.Timeouts.Transfer = 500 * time.Millisecond
			g := start(t, s.cfg, Parts{})
			if connectorName != connector.NameNone {
				g.warmed()
			}
			l := "decode"
			if connectorName == connector.NameNone {
				l = "alone"
			}
			s.setFaults(map[string][]fault{"decode-0": {{Leg: l, Do: doSlow, N: 3_600_000}}})
			n := s.c.count("decode-0", l)
			leave(t, g, plainBody, func() bool { return s.c.count("decode-0", l) > n })
			if sum := g.last(1); sum.Outcome != report.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.settled()
			eventually(t, "decode sees the end", func() bool { return s.d[0].underWay() == 0 })
			s.noHeld(t)
		})
	}
}
