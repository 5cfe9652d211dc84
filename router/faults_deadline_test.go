package router

import (
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestFault58DeadlineLeavesNothing has the time of a request end before decode's first token: its client has the error while the
// engines still work for it, and when they have come so far that their legs can be ended nothing is held, and nothing is counted.
func TestFault58DeadlineLeavesNothing(t *testing.T) {
	for _, row := range []struct {
		name, connector, body string
		faults                map[string][]fault
	}{
		{"push, in prefill", connector.NamePush, streamBody, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 3000}}}},
		{"push, before the first token", connector.NamePush, streamBody, map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 3000}}}},
		{"pull, in prefill", connector.NamePull, streamBody, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 5000}}}},
		{"pull, before the first token", connector.NamePull, streamBody, map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 3000}}}},
		{"pull, before the answer", connector.NamePull, plainBody, map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 3000}}}},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s := newPool(t, row.connector, 1, 1, nil)
			s.cfg.Timeouts.Request, s.cfg.Timeouts.Answer = 500*time.Millisecond, 500*time.Millisecond
			limits := new(fakeLimiter)
			g := start(t, s.cfg, Parts{Limits: limits, Planner: firstUsable{}})
			g.warmed()
			s.setFaults(row.faults)
			before := s.c.count("", "")
			r := g.post(pathCompletions, row.body)
			working := 0
			for _, e := range s.engines() {
				working += e.underWay()
			}
			short := row.connector == connector.NamePull && row.faults["prefill-0"] != nil // the while that it gets may be over
			if errorOf(t, r.Body); r.Status != 504 || r.Header.Get("X-Pdrouter-Reason") != "deadline" || working == 0 && !short {
				t.Errorf("status %d, header %v, %d legs go on: %s", r.Status, r.Header, working, r.Body)
			}
			if sum := g.last(1); sum.Outcome != report.FailedBefore || sum.Attempts != 1 || sum.Stranded || limits.open.Load() != 0 {
				t.Errorf("%d leases, summary %+v", limits.open.Load(), sum)
			}
			g.settled()
			s.noHeld(t)
			if n := g.r.Stats().Stranded; n != 0 {
				t.Errorf("counted %d times; want never", n)
			}
			if n := s.c.count("", "") - before; n > 2 {
				t.Errorf("engines were asked %d times; want once each", n)
			}
		})
	}
}
