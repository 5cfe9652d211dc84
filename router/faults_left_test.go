package router

import (
	"sync/atomic"
	"testing"

	"pdrouter/auth"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// fakeLimiter admits everybody, and counts whose requests have not ended.
type fakeLimiter struct{ open atomic.Int64 }

func (l *fakeLimiter) Admit(auth.Principal, int) (Lease, Allowance) {
	l.open.Add(1)
	return l, Allowance{}
}

func (l *fakeLimiter) Done(int) { l.open.Add(-1) }

// TestFault58LeavesLegsBehind has the client go before decode's first token: its lease, its place and its summary are there
// while an engine still works for it, and when that has ended nothing is held.
func TestFault58LeavesLegsBehind(t *testing.T) {
	for _, row := range []struct {
		name, connector, body, leg string
		faults                     map[string][]fault
	}{
		{"push, in prefill", connector.NamePush, plainBody, "decode", map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 2000}}}},
		{"push, in prefill, streamed", connector.NamePush, streamBody, "decode", map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 2000}}}},
		{"push, before the first token", connector.NamePush, streamBody, "decode", map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 2000}}}},
		{"pull, in prefill", connector.NamePull, streamBody, "prefill", map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 5000}}}},
		{"pull, before the first token", connector.NamePull, streamBody, "decode", map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 2000}}}},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s := newPool(t, row.connector, 1, 1, nil)
			limits := new(fakeLimiter)
			g := start(t, s.cfg, Parts{Limits: limits})
			g.warmed()
			s.setFaults(row.faults)
			before := s.c.count("", row.leg)
			leave(t, g, row.body, func() bool { return s.c.count("", row.leg) > before })
			if sum := g.last(1); sum.Outcome != report.ClientLeft || sum.Status != 499 || limits.open.Load() != 0 {
				t.Errorf("%d leases, summary %+v", limits.open.Load(), sum)
			}
			working := 0
			for _, e := range s.engines() {
				working += e.underWay()
			}
			if working == 0 {
				t.Error("no engine works for it any more: the request was told too late, or its legs were ended")
			}
			if q := g.r.Stats().Queues[0]; q.InFlight != 0 {
				t.Errorf("%d places are taken", q.InFlight)
			}
			g.settled()
			s.noHeld(t)
		})
	}
}

// TestFault58LeavesTooManyBehind has more clients leave than may leave legs behind: those of the others end at once.
func TestFault58LeavesTooManyBehind(t *testing.T) {
	s := newPool(t, connector.NamePush, 1, 1, nil)
	s.cfg.Limits.Background = 1
	g := start(t, s.cfg, Parts{})
	g.warmed()
	s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 500}}})
	for i := range 3 {
		decodes := s.c.count("", "decode")
		leave(t, g, plainBody, func() bool { return s.c.count("", "decode") > decodes })
		if sum := g.last(i + 1); sum.Outcome != report.ClientLeft {
			t.Errorf("summary %+v", sum)
		}
	}
	g.settled()
}
