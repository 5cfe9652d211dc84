package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
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
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, parts := routertest.NewPool(t, row.connector, 1, 1, nil), router.Parts{}
			if row.connector == connector.NameKVPlane {
				s, _, parts = routertest.NewPlane(t, 1, 1)
			}
			if !row.control && row.connector == connector.NameKVPlane {
				s.Config.Models[0].Prefill[0].Control, s.Config.Models[0].Decode[0].Control = "", ""
			}
			s.Config.Timeouts.Transfer, s.Config.Timeouts.Request = row.transfer, 2*row.transfer
			g := routertest.Start(t, s.Config, parts)
			if row.connector == connector.NamePush || row.connector == connector.NameKVPlane {
				g.WaitWarm()
			}
			if row.control {
				g.WaitFollowed()
			}
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: row.leg, Do: routertest.DoSlow, N: 5 * int(row.transfer.Milliseconds()) / 2}}})
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if r.Status != 200 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			if got, _ := routertest.Text(t, r); got != routertest.WholeText {
				t.Errorf("text %q", got)
			}
			if sum := g.Summary(1); sum.Attempts != 1 || sum.Outcome != dispatch.Completed {
				t.Errorf("%d attempts, %s; want 1, completed", sum.Attempts, sum.Outcome)
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}

// TestFault54SilentWrite has stock prefill answer and write nothing: of an answer that is not streamed nothing is known
// before its whole time is over.
func TestFault54SilentWrite(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	s.Config.Timeouts.RequestTotal = time.Second
	g := routertest.Start(t, s.Config, router.Parts{})
	g.WaitWarm()
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoNeverKV}}})
	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if got := r.Header.Get("X-Pdrouter-Reason"); r.Status != 504 || got != "deadline" {
		t.Errorf("status %d, reason %q; want 504, deadline", r.Status, got)
	}
}

// TestFault58LongAnswer has the client of a long answer leave: decode is given the time of a transfer, not that of an
// answer that nobody reads.
func TestFault58LongAnswer(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		t.Run(connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 1, 1, nil)
			s.Config.Timeouts.Transfer = 500 * time.Millisecond
			g := routertest.Start(t, s.Config, router.Parts{})
			if connectorName != connector.NameNone {
				g.WaitWarm()
			}
			l := "decode"
			if connectorName == connector.NameNone {
				l = "alone"
			}
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: l, Do: routertest.DoSlow, N: 3_600_000}}})
			n := s.Cluster.Count("decode-0", l)
			leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("decode-0", l) > n })
			if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.WaitIdle()
			routertest.Eventually(t, "decode sees the end", func() bool { return s.Decode[0].UnderWay() == 0 })
			s.CheckNothingHeld(t)
		})
	}
}
