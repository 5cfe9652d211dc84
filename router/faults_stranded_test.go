package router

import (
	"testing"
	"time"

	"pdrouter/router/connector"
)

// TestStranded leaves KV with an engine in every way in which that cannot be helped, behind the request's end too: each
// is counted once.
func TestStranded(t *testing.T) {
	for _, row := range []struct {
		name      string
		connector string
		faults    map[string][]fault
		leaves    bool // the client, in mid-prefill
	}{
		{"push, a prefill leg that runs on fails", connector.NamePush, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doResetLate, N: 200}}}, true},
		{"push, a prefill leg that runs on is late", connector.NamePush, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doHang}}}, true},
		{"push, prefill cannot be asked again", connector.NamePush, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doDie}}}, false},
		{"pull, nobody takes what prefill holds", connector.NamePull, map[string][]fault{
			"decode-0": {{Leg: "decode", Do: doRefuse}}, "decode-1": {{Leg: "decode", Do: doRefuse}}}, false},
		{"pull, the time is over while decode reads", connector.NamePull, map[string][]fault{"decode-0": {{Leg: "decode", Do: doHang}}}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newPool(t, row.connector, 1, 2, nil)
			s.cfg.Limits.Attempts = 1
			s.cfg.Timeouts.Answer, s.cfg.Timeouts.Prefill, s.cfg.Timeouts.Ending = 2*time.Second, 2*time.Second, time.Second
			g := start(t, s.cfg, Parts{Planner: firstUsable{}})
			g.warmed()
			s.setFaults(row.faults)
			prefills, decodes := s.c.count("", "prefill"), s.c.count("", "decode")
			if row.leaves {
				leave(t, g, plainBody, func() bool {
					return s.c.count("", "prefill") > prefills && s.c.count("", "decode") > decodes
				})
			} else if r := g.post(pathCompletions, plainBody); r.Status < 500 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			g.last(1)
			eventually(t, "what is left is counted", func() bool { return g.r.Stats().Stranded > 0 })
			g.settled()
			if n := g.r.Stats().Stranded; n != 1 {
				t.Errorf("counted %d times; want 1", n)
			}
		})
	}
}

// TestFault66ShutdownBehindLeaving stops the router right behind a client that left in mid-prefill: the prefill leg gets
// its time to write what decode waits for, and what it cannot is counted.
func TestFault66ShutdownBehindLeaving(t *testing.T) {
	for _, row := range []struct {
		name     string
		prefill  int // milliseconds
		drain    time.Duration
		stranded uint64
	}{
		{"in time", 500, longEnough, 0},
		{"not in time", 3_600_000, 300 * time.Millisecond, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newPool(t, connector.NamePush, 1, 1, nil)
			s.cfg.Timeouts.Drain = row.drain
			g := start(t, s.cfg, Parts{})
			g.warmed()
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: row.prefill}}})
			p, d := s.c.count("", "prefill"), s.c.count("", "decode")
			leave(t, g, plainBody, func() bool { return s.c.count("", "prefill") > p && s.c.count("", "decode") > d })
			g.stop()
			g.last(1)
			if n := g.r.Stats().Stranded; n != row.stranded {
				t.Errorf("%d stranded; want %d", n, row.stranded)
			}
			if row.stranded == 0 {
				s.noHeld(t)
			}
		})
	}
}
