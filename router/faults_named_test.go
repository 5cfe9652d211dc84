package router

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestFault47StockPlainNamesWait has prefill's answer lost, or an error in its place, where prefill knows requests by the very id that
// they are given: it is asked again under it only when a later request has come to its end there, it was told that what it may hold was
// taken, and another one has come to its end; and as often as that fails. Without an agent, or where nothing comes to its end, it is not
// asked again: what decode holds is counted. Where the leg was given up nothing shows when prefill notices, so that it is not asked again
// either: decode is told once prefill has nothing in hand and a later request has been handed over.
func TestFault47StockPlainNamesWait(t *testing.T) {
	lost := fault{Leg: "prefill", Nth: 1, Do: doResetLate, N: 100}
	failed := fault{Leg: "prefill", Nth: 1, Do: doErrorLate, N: 100}
	again := failed
	again.Nth = 2
	for _, row := range []struct {
		name   string
		agent  bool
		faults []fault
		asked  int // again
		told   int // decode
	}{
		{"agent", true, []fault{lost}, 1, 0},
		{"no agent", false, []fault{lost}, 0, 0},
		{"an error, agent", true, []fault{failed}, 1, 0},
		{"an error, no agent", false, []fault{failed}, 0, 0},
		{"two errors, agent", true, []fault{failed, again}, 2, 0},
		{"late, agent", true, []fault{{Leg: "prefill", Nth: 1, Do: doHang}}, 0, 1},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Models[0].Prefill[0].PlainRequestIDs = true
				c.Timeouts.Prefill, c.Timeouts.Ending = 2*time.Second, longEnough
			})
			before := s.c.count("", "")
			s.setFaults(map[string][]fault{"prefill-0": row.faults})
			if r := g.post(pathCompletions, plainBody); r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if row.asked+row.told > 0 {
				s.noHeld(t)
			} else {
				eventually(t, "what may stay held is counted", func() bool { return g.blocks("decode-0")[StrandMay] > 0 })
			}
			g.settled()
			var order []string
			lost := ""
			for _, q := range s.c.all()[before:] {
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
			if told := f.count("prefill-0 cmpl-" + lost); asked != row.asked || told != row.asked {
				t.Errorf("prefill got %v and was told %d times; want both %d times", order, told, row.asked)
			}
			if n := f.count("decode"); n != row.told {
				t.Errorf("decode was told %d times; want %d", n, row.told)
			}
		})
	}
}

// TestFault54StockPlainNamesPrefillDies has prefill die where it knows requests by the very id that they are given: that it is gone is
// looked at before anything is waited for there, so decode's blocks come free as soon as with other names.
func TestFault54StockPlainNamesPrefillDies(t *testing.T) {
	unhurried(t, "54", func(t *testing.T) {
		s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Models[0].Prefill[0].PlainRequestIDs = true })
		s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doResetLate, N: 100}}})
		before := s.c.count("", "")
		got := make(chan clientReply, 1)
		go func() { got <- g.post(pathCompletions, plainBody) }()
		eventually(t, "both legs are under way", func() bool { return s.c.count("", "") == before+2 && s.d[0].underWay() == 1 })
		f.died("prefill-0")
		_ = s.p[0].srv.Listener.Close()
		s.p[0].srv.CloseClientConnections()
		died := time.Now()
		if r := <-got; r.Status != 200 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
		eventually(t, "decode's blocks are free", func() bool { return g.freed("prefill_lost", "notify_decode") == 1 })
		if took := time.Since(died); took > RefusedFor+2*FenceAfter+time.Second {
			t.Errorf("decode was told %v behind prefill's end", took)
		}
		g.settled()
		if n := g.r.Stats().Stranded; n != 0 || f.count("decode") != 1 || f.count("prefill") != 0 {
			t.Errorf("%d stranded, decode told %d times, prefill %d times; want 0, 1 and 0", n, f.count("decode"), f.count("prefill"))
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
	}{{"agent", true, StrandUnproven}, {"no agent", false, StrandNoAgent}} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Models[0].Prefill[0].PlainRequestIDs = true
				c.Timeouts.Health, c.Timeouts.SideChannel = 200*time.Millisecond, time.Minute
			})
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doResetLate, N: 100}}})
			before := s.c.count("", "")
			got := make(chan clientReply, 1)
			go func() { got <- g.post(pathCompletions, plainBody) }()
			eventually(t, "both legs are under way", func() bool { return s.c.count("", "") == before+2 && s.d[0].underWay() == 1 })
			f.mu.Lock()
			f.silent = true
			f.mu.Unlock()
			f.died("prefill-0")
			_ = s.p[0].srv.Listener.Close()
			s.p[0].srv.CloseClientConnections()
			if r := <-got; r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			eventually(t, "it is counted", func() bool { return g.r.Stats().Stranded == 1 })
			if held := g.blocks("decode-0"); held[row.why] == 0 {
				t.Errorf("decode holds %v; want some for %v", held, row.why)
			}
			g.settled()
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.looks > 20 {
				t.Errorf("%d looks at prefill in 10 s", f.looks)
			}
		})
	}
}

// TestFault58PullPlainNamesTold has the client go while prefill, which knows requests by the very id that they are given, works alone. It
// may just have finished, so it is told by that name that this was taken; but not while it has anything in hand, which may be that.
func TestFault58PullPlainNamesTold(t *testing.T) {
	for _, busy := range []bool{false, true} {
		unhurried(t, map[bool]string{false: "idle", true: "busy"}[busy], func(t *testing.T) {
			s, g, f := reclaiming(t, connector.NamePull, func(c *config.Config) { c.Models[0].Prefill[0].PlainRequestIDs = true })
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doHang}, {Leg: "prefill", Nth: 2, Do: doSlow, N: 30_000}}})
			prefills := s.c.count("", "prefill")
			leave(t, g, plainBody, func() bool { return s.c.count("", "prefill") == prefills+1 })
			got := make(chan clientReply, 1)
			if busy {
				go func() { got <- g.post(pathCompletions, plainBody) }()
				eventually(t, "another is under way", func() bool { return s.c.count("", "prefill") == prefills+2 })
			}
			eventually(t, "it was seen to", func() bool { return g.r.Debug().Running() > 0 })
			eventually(t, "that is over", func() bool { return g.r.Debug().Running() == 0 })
			if n := f.count("prefill"); busy != (n == 0) {
				t.Errorf("prefill was told %d times", n)
			}
			if busy {
				if r := <-got; r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			}
			g.settled()
		})
	}
}
