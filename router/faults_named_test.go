package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/reclaim"
)

// TestFault47StockPlainNamesWait has prefill's answer lost, or an error in its place, where prefill knows requests by the very id that
// they are given: it is asked again under it only when a later request has come to its end there, it was told that what it may hold was
// taken, and another one has come to its end; and as often as that fails. Without an agent, or where nothing comes to its end, it is not
// asked again: what decode holds is counted. Where the leg was given up nothing shows when prefill notices, so that it is not asked again
// either: decode is told once prefill has nothing in hand and a later request has been handed over.
func TestFault47StockPlainNamesWait(t *testing.T) {
	lost := routertest.Fault{Leg: "prefill", Nth: 1, Do: routertest.DoResetLate, N: 100}
	failed := routertest.Fault{Leg: "prefill", Nth: 1, Do: routertest.DoErrorLate, N: 100}
	again := failed
	again.Nth = 2
	for _, row := range []struct {
		name   string
		agent  bool
		faults []routertest.Fault
		asked  int // again
		told   int // decode
	}{
		{"agent", true, []routertest.Fault{lost}, 1, 0},
		{"no agent", false, []routertest.Fault{lost}, 0, 0},
		{"an error, agent", true, []routertest.Fault{failed}, 1, 0},
		{"an error, no agent", false, []routertest.Fault{failed}, 0, 0},
		{"two errors, agent", true, []routertest.Fault{failed, again}, 2, 0},
		{"late, agent", true, []routertest.Fault{{Leg: "prefill", Nth: 1, Do: routertest.DoHang}}, 0, 1},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, f := routertest.ReclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Models[0].Prefill[0].RequestIDRandomizationDisabled = true
				c.Timeouts.Prefill, c.Timeouts.Cleanup = 2*time.Second, routertest.Patience
			})
			before := s.Cluster.Count("", "")
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": row.faults})
			if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if row.asked+row.told > 0 {
				s.CheckNothingHeld(t)
			} else {
				routertest.Eventually(t, "what may stay held is counted", func() bool { return g.Blocks("decode-0")[reclaim.CausePossible.String()] > 0 })
			}
			g.WaitIdle()
			var order []string
			lost := ""
			for _, q := range s.Cluster.All()[before:] {
				switch {
				case q.Engine != "prefill-0":
				case q.Leg == "prefill" && lost == "":
					lost = q.ID
				case q.Leg == "prefill" && q.ID == lost:
					order = append(order, "again")
				case q.Leg == "alone":
					order = append(order, "later")
				}
			}
			asked, later := 0, 0
			for _, o := range order {
				if o == "later" {
					later++
					continue
				}
				if later < 2 {
					t.Errorf("prefill got %v; want two later requests before it is asked again", order)
				}
				asked, later = asked+1, 0
			}
			if told := f.Count("prefill-0 cmpl-" + lost); asked != row.asked || told != row.asked {
				t.Errorf("prefill got %v and was told %d times; want both %d times", order, told, row.asked)
			}
			if n := f.Count("decode"); n != row.told {
				t.Errorf("decode was told %d times; want %d", n, row.told)
			}
		})
	}
}

// TestFault54StockPlainNamesPrefillDies has prefill die where it knows requests by the very id that they are given: that it is gone is
// looked at before anything is waited for there, so decode's blocks come free as soon as with other names.
func TestFault54StockPlainNamesPrefillDies(t *testing.T) {
	routertest.RunVirtual(t, "54", func(t *testing.T) {
		s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Models[0].Prefill[0].RequestIDRandomizationDisabled = true })
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoResetLate, N: 100}}})
		before := s.Cluster.Count("", "")
		got := make(chan routertest.Reply, 1)
		go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
		routertest.Eventually(t, "both legs are under way", func() bool { return s.Cluster.Count("", "") == before+2 && s.Decode[0].UnderWay() == 1 })
		f.Died("prefill-0")
		_ = s.Prefill[0].Server.Listener.Close()
		s.Prefill[0].Server.CloseClientConnections()
		died := time.Now()
		if r := <-got; r.Status != 200 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
		routertest.Eventually(t, "decode's blocks are free", func() bool { return g.Freed("prefill_lost", "notify_decode") == 1 })
		if took := time.Since(died); took > router.RefusedFor+2*reclaim.BarrierAfter+time.Second {
			t.Errorf("decode was told %v behind prefill's end", took)
		}
		g.WaitIdle()
		if n := g.Router.Stats().Leaked; n != 0 || f.Count("decode") != 1 || f.Count("prefill") != 0 {
			t.Errorf("%d leaked, decode told %d times, prefill %d times; want 0, 1 and 0", n, f.Count("decode"), f.Count("prefill"))
		}
	})
}

// TestFault54StockPlainNamesPrefillSilent has prefill fall silent, so that nothing shows what became of it: where nobody could be told
// anyway what decode holds is counted as soon as prefill is down, and else when there is no more time; the looks at it are ever more
// seldom.
func TestFault54StockPlainNamesPrefillSilent(t *testing.T) {
	for _, row := range []struct {
		name  string
		agent bool
		why   string
	}{{"agent", true, reclaim.CauseUnproven.String()}, {"no agent", false, reclaim.CauseNoAgent.String()}} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, f := routertest.ReclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Models[0].Prefill[0].RequestIDRandomizationDisabled = true
				c.Timeouts.Health, c.Timeouts.SideChannel = 200*time.Millisecond, time.Minute
			})
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoResetLate, N: 100}}})
			before := s.Cluster.Count("", "")
			got := make(chan routertest.Reply, 1)
			go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
			routertest.Eventually(t, "both legs are under way", func() bool { return s.Cluster.Count("", "") == before+2 && s.Decode[0].UnderWay() == 1 })
			f.Mu.Lock()
			f.Silent = true
			f.Mu.Unlock()
			f.Died("prefill-0")
			_ = s.Prefill[0].Server.Listener.Close()
			s.Prefill[0].Server.CloseClientConnections()
			if r := <-got; r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			routertest.Eventually(t, "it is counted", func() bool { return g.Router.Stats().Leaked == 1 })
			if held := g.Blocks("decode-0"); held[row.why] == 0 {
				t.Errorf("decode holds %v; want some for %v", held, row.why)
			}
			g.WaitIdle()
			f.Mu.Lock()
			defer f.Mu.Unlock()
			if f.Looks > 20 {
				t.Errorf("%d looks at prefill in 10 s", f.Looks)
			}
		})
	}
}

// TestFault58PullPlainNamesTold has the client go while prefill, which knows requests by the very id that they are given, works alone. It
// may just have finished, so it is told by that name that this was taken; but not while it has anything in hand, which may be that.
func TestFault58PullPlainNamesTold(t *testing.T) {
	for _, busy := range []bool{false, true} {
		routertest.RunVirtual(t, map[bool]string{false: "idle", true: "busy"}[busy], func(t *testing.T) {
			s, g, f := routertest.Reclaiming(t, connector.NamePull, func(c *config.Config) { c.Models[0].Prefill[0].RequestIDRandomizationDisabled = true })
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoHang}, {Leg: "prefill", Nth: 2, Do: routertest.DoSlow, N: 30_000}}})
			prefills := s.Cluster.Count("", "prefill")
			leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("", "prefill") == prefills+1 })
			got := make(chan routertest.Reply, 1)
			if busy {
				go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
				routertest.Eventually(t, "another is under way", func() bool { return s.Cluster.Count("", "prefill") == prefills+2 })
			}
			routertest.Eventually(t, "it was seen to", func() bool { return g.Router.Debug().Running() > 0 })
			routertest.Eventually(t, "that is over", func() bool { return g.Router.Debug().Running() == 0 })
			if n := f.Count("prefill"); busy != (n == 0) {
				t.Errorf("prefill was told %d times", n)
			}
			if busy {
				if r := <-got; r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			}
			g.WaitIdle()
		})
	}
}
