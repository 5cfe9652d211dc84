package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/reclaim"
)

// TestFault54StockPrefillDies has prefill die while decode waits for it. The client is served by decode alone; decode is told
// once that is safe, or, where its names are not known, the blocks are counted.
func TestFault54StockPrefillDies(t *testing.T) {
	for _, named := range []bool{true, false} {
		t.Run(map[bool]string{true: "named", false: "not named"}[named], func(t *testing.T) {
			s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Models[0].Decode[0].RequestIDRandomizationDisabled = named })
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoResetLate, N: 100}}})
			before := s.Cluster.Count("", "decode")
			go func() {
				routertest.Eventually(t, "decode has registered", func() bool { return s.Cluster.Count("", "decode") > before })
				f.Died("prefill-0")
				_ = s.Prefill[0].Server.Listener.Close()
			}()
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if got, _ := routertest.Text(t, r); r.Status != 200 || got != routertest.WholeText {
				t.Errorf("status %d, %q", r.Status, got)
			}
			s.Prefill[0].Server.CloseClientConnections()
			if !named {
				routertest.Eventually(t, "what stays held is shown", func() bool { return g.Blocks("decode-0")[reclaim.CauseNames.String()] > 0 })
				if n := f.Count("decode"); n != 0 {
					t.Errorf("decode was told %d times; want never", n)
				}
				return
			}
			s.CheckNothingHeld(t)
			routertest.Eventually(t, "it is counted", func() bool { return g.Freed("prefill_lost", "notify_decode") == 1 })
			if g.Router.Stats().Leaked != 0 || f.Count("decode") != 1 {
				t.Errorf("%d leaked, decode told %d times; want 0 and 1", g.Router.Stats().Leaked, f.Count("decode"))
			}
		})
	}
}

// TestFault58PullLeavesInPrefill has the client go while prefill works alone: what it then holds for nobody is given back
// by a message, without decode.
func TestFault58PullLeavesInPrefill(t *testing.T) {
	s, g, f := routertest.Reclaiming(t, connector.NamePull, nil)
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 200}}})
	prefills, decodes := s.Cluster.Count("", "prefill"), s.Cluster.Count("", "decode")
	leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("", "prefill") > prefills })
	if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft {
		t.Errorf("summary %+v", sum)
	}
	s.CheckNothingHeld(t)
	routertest.Eventually(t, "it is counted", func() bool { return g.Freed("not_taken", "notify_prefill") == 1 })
	if f.Count("prefill") != 1 || s.Cluster.Count("", "decode") != decodes {
		t.Errorf("prefill told %d times, decode asked %d times; want 1 and 0", f.Count("prefill"), s.Cluster.Count("", "decode")-decodes)
	}
}

// TestFault55StockLeaseEnds has decode fail on what prefill has held: the next attempt prefills again, under new ids, and
// nobody is told anything as long as decode may be reading.
func TestFault55StockLeaseEnds(t *testing.T) {
	s, g, f := routertest.Reclaiming(t, connector.NamePull, nil)
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoError}}})
	before := s.Cluster.Count("", "prefill")
	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if got, _ := routertest.Text(t, r); r.Status != 200 || got != routertest.WholeText {
		t.Errorf("status %d, %q", r.Status, got)
	}
	if n := s.Cluster.Count("", "prefill") - before; n != 2 {
		t.Errorf("%d prefill legs; want 2", n)
	}
	routertest.Eventually(t, "what stays held is shown", func() bool { return g.Blocks("prefill-0")[reclaim.CauseReading.String()] > 0 })
	if f.Count("prefill") != 0 {
		t.Error("prefill was told while decode may have been reading")
	}
	s.Cluster.Mu.Lock()
	defer s.Cluster.Mu.Unlock()
	if len(s.Cluster.Twice) > 0 {
		t.Errorf("used twice: %v", s.Cluster.Twice)
	}
}

// TestFault57StockNeverWritten has prefill answer and write nothing while it lives, as it does when its lease ends before decode has
// registered: the request is served by another attempt. A later request that is handed over shows that prefill writes nothing of this
// one any more, and decode is told. Without an agent prefill is asked again under the same id, and as nobody can tell whether that has
// freed decode's blocks, they are counted; a prefill engine that would have two requests of one name is not asked again.
func TestFault57StockNeverWritten(t *testing.T) {
	for _, row := range []struct {
		name         string
		plain, agent bool
		asked        int // prefill, under the id of the decode leg that was lost
	}{
		{"57 random names", false, true, 1},
		{"57 random names, no agent", false, false, 2},
		{"57 plain names", true, true, 1},
		{"57 plain names, no agent", true, false, 1},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, f := routertest.ReclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Timeouts.Transfer = 300 * time.Millisecond
				c.Timeouts.Cleanup = 3 * reclaim.BarrierAfter
			})
			s.Prefill[0].Mu.Lock()
			s.Prefill[0].PlainIDs = row.plain
			s.Prefill[0].Mu.Unlock()
			before := s.Cluster.Count("", "")
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}}})
			r := g.Post(routertest.PathCompletions, routertest.StreamBody)
			if got, whole := routertest.Text(t, r); r.Status != 200 || got != routertest.WholeText || !whole {
				t.Errorf("status %d, %q", r.Status, got)
			}
			told := 0
			if row.agent {
				told = 1
				routertest.Eventually(t, "decode's blocks are free", func() bool { return g.Freed("prefill_lost", "notify_decode") == 1 })
				s.CheckNothingHeld(t)
			} else {
				routertest.Eventually(t, "what may stay held is counted", func() bool { return g.Blocks("decode-0")[reclaim.CausePossible.String()] > 0 })
			}
			g.WaitIdle()
			lost, asked := "", 0
			for _, q := range s.Cluster.All()[before:] {
				if q.Fault == routertest.DoNeverKV {
					lost = q.ID
				}
				if q.Leg == "prefill" && q.ID == lost {
					asked++
				}
			}
			if n := f.Count("decode"); n != told || asked != row.asked {
				t.Errorf("decode was told %d times, prefill was asked %d times; want %d and %d", n, asked, told, row.asked)
			}
			if _, d := s.Cluster.Held(); !row.plain && d != 0 {
				t.Errorf("decode holds %d", d)
			}
			if n := g.Blocks("prefill-0")[reclaim.CausePossible.String()]; row.agent != (n == 0) {
				t.Errorf("%d blocks may be held by prefill", n)
			}
			if n := g.Router.Stats().Leaked; n != 0 {
				t.Errorf("counted %d times though it is not known that any is held", n)
			}
		})
	}
}

// TestFault54StockDecodeFails has decode fail by itself behind prefill's answer: what prefill may hold is given back, or counted.
func TestFault54StockDecodeFails(t *testing.T) {
	for _, agent := range []bool{true, false} {
		routertest.RunVirtual(t, map[bool]string{true: "54 agent", false: "54 no agent"}[agent], func(t *testing.T) {
			s, g, f := routertest.ReclaimingWith(t, connector.NamePush, agent, nil)
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoErrorLate, N: 200}}})
			if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if agent {
				s.CheckNothingHeld(t)
				if f.Count("prefill") != 1 {
					t.Errorf("prefill was told %d times", f.Count("prefill"))
				}
				return
			}
			routertest.Eventually(t, "what may stay held is counted", func() bool { return g.Blocks("prefill-0")[reclaim.CausePossible.String()] > 0 })
			if n := g.Router.Stats().Leaked; n != 0 {
				t.Errorf("counted %d times though it is not known that any is held", n)
			}
		})
	}
}

// TestFault12StockLegsAreSentOnce has an engine close the kept connection that a leg comes on: the leg is not sent a second time under
// its id, as the first may have been begun; another attempt serves.
func TestFault12StockLegsAreSentOnce(t *testing.T) {
	for _, l := range []string{"prefill", "decode"} {
		for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
			routertest.RunVirtual(t, "12 "+l+" "+connectorName, func(t *testing.T) {
				s, g, _ := routertest.Reclaiming(t, connectorName, nil)
				s.SetFaults(map[string][]routertest.Fault{l + "-0": {{Leg: l, Nth: 1, Do: routertest.DoReset}}})
				before := s.Cluster.Count("", "")
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				if sum := g.Summary(1); sum.Attempts != 2 {
					t.Errorf("%d attempts; want 2", sum.Attempts)
				}
				lost := ""
				for _, q := range s.Cluster.All()[before:] {
					switch {
					case q.Leg == l && lost == "":
						lost = q.ID
					case q.Leg == "decode" && l == "decode" && q.ID == lost:
						t.Error("decode was asked twice under one id")
					}
				}
			})
		}
	}
}

// TestFault56StockToldOnce: what an ending has left behind is given back by one message, whatever else ends beside it.
func TestFault56StockToldOnce(t *testing.T) {
	s, g, f := routertest.Reclaiming(t, connector.NamePull, nil)
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 100}}})
	for range 4 {
		n := s.Cluster.Count("", "prefill")
		leave(t, g, routertest.PlainBody, func() bool { return s.Cluster.Count("", "prefill") > n })
	}
	g.Summary(4)
	s.CheckNothingHeld(t)
	g.WaitIdle()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for message, n := range f.Told {
		if n != 1 {
			t.Errorf("%s: %d times", message, n)
		}
	}
	if len(f.Told) != 4 {
		t.Errorf("told %v; want 4 messages", f.Told)
	}
}
