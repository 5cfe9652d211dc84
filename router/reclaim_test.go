package router

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestFault54StockPrefillDies has prefill die while decode waits for it. The client is served by decode alone; decode is told
// once that is safe, or, where its names are not known, the blocks are counted.
func TestFault54StockPrefillDies(t *testing.T) {
	for _, named := range []bool{true, false} {
		t.Run(map[bool]string{true: "named", false: "not named"}[named], func(t *testing.T) {
			s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Models[0].Decode[0].PlainRequestIDs = named })
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doResetLate, N: 100}}})
			before := s.c.count("", "decode")
			go func() {
				eventually(t, "decode has registered", func() bool { return s.c.count("", "decode") > before })
				f.died("prefill-0")
				_ = s.p[0].srv.Listener.Close()
			}()
			r := g.post(pathCompletions, plainBody)
			if got, _ := text(t, r); r.Status != 200 || got != wholeText {
				t.Errorf("status %d, %q", r.Status, got)
			}
			s.p[0].srv.CloseClientConnections()
			if !named {
				eventually(t, "what stays held is shown", func() bool { return g.blocks("decode-0")[StrandNames] > 0 })
				if n := f.count("decode"); n != 0 {
					t.Errorf("decode was told %d times; want never", n)
				}
				return
			}
			s.noHeld(t)
			eventually(t, "it is counted", func() bool { return g.freed("prefill_lost", "notify_decode") == 1 })
			if g.r.Stats().Stranded != 0 || f.count("decode") != 1 {
				t.Errorf("%d stranded, decode told %d times; want 0 and 1", g.r.Stats().Stranded, f.count("decode"))
			}
		})
	}
}

// TestFault58PullLeavesInPrefill has the client go while prefill works alone: what it then holds for nobody is given back
// by a message, without decode.
func TestFault58PullLeavesInPrefill(t *testing.T) {
	s, g, f := reclaiming(t, connector.NamePull, nil)
	s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 200}}})
	prefills, decodes := s.c.count("", "prefill"), s.c.count("", "decode")
	leave(t, g, plainBody, func() bool { return s.c.count("", "prefill") > prefills })
	if sum := g.last(1); sum.Outcome != report.ClientLeft {
		t.Errorf("summary %+v", sum)
	}
	s.noHeld(t)
	eventually(t, "it is counted", func() bool { return g.freed("not_taken", "notify_prefill") == 1 })
	if f.count("prefill") != 1 || s.c.count("", "decode") != decodes {
		t.Errorf("prefill told %d times, decode asked %d times; want 1 and 0", f.count("prefill"), s.c.count("", "decode")-decodes)
	}
}

// TestFault55StockLeaseEnds has decode fail on what prefill has held: the next attempt prefills again, under new ids, and
// nobody is told anything as long as decode may be reading.
func TestFault55StockLeaseEnds(t *testing.T) {
	s, g, f := reclaiming(t, connector.NamePull, nil)
	s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Nth: 1, Do: doError}}})
	before := s.c.count("", "prefill")
	r := g.post(pathCompletions, plainBody)
	if got, _ := text(t, r); r.Status != 200 || got != wholeText {
		t.Errorf("status %d, %q", r.Status, got)
	}
	if n := s.c.count("", "prefill") - before; n != 2 {
		t.Errorf("%d prefill legs; want 2", n)
	}
	eventually(t, "what stays held is shown", func() bool { return g.blocks("prefill-0")[StrandReading] > 0 })
	if f.count("prefill") != 0 {
		t.Error("prefill was told while decode may have been reading")
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.c.twice) > 0 {
		t.Errorf("used twice: %v", s.c.twice)
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
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaimingWith(t, connector.NamePush, row.agent, func(c *config.Config) {
				c.Timeouts.Transfer = 300 * time.Millisecond
				c.Timeouts.Ending = 3 * FenceAfter
			})
			s.p[0].mu.Lock()
			s.p[0].plain = row.plain
			s.p[0].mu.Unlock()
			before := s.c.count("", "")
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}}})
			r := g.post(pathCompletions, streamBody)
			if got, whole := text(t, r); r.Status != 200 || got != wholeText || !whole {
				t.Errorf("status %d, %q", r.Status, got)
			}
			told := 0
			if row.agent {
				told = 1
				eventually(t, "decode's blocks are free", func() bool { return g.freed("prefill_lost", "notify_decode") == 1 })
				s.noHeld(t)
			} else {
				eventually(t, "what may stay held is counted", func() bool { return g.blocks("decode-0")[StrandMay] > 0 })
			}
			g.settled()
			lost, asked := "", 0
			for _, q := range s.c.all()[before:] {
				if q.Fault == doNeverKV {
					lost = q.ID
				}
				if q.Leg == "prefill" && q.ID == lost {
					asked++
				}
			}
			if n := f.count("decode"); n != told || asked != row.asked {
				t.Errorf("decode was told %d times, prefill was asked %d times; want %d and %d", n, asked, told, row.asked)
			}
			if _, d := s.c.held(); !row.plain && d != 0 {
				t.Errorf("decode holds %d", d)
			}
			if n := g.blocks("prefill-0")[StrandMay]; row.agent != (n == 0) {
				t.Errorf("%d blocks may be held by prefill", n)
			}
			if n := g.r.Stats().Stranded; n != 0 {
				t.Errorf("counted %d times though it is not known that any is held", n)
			}
		})
	}
}

// TestFault54StockDecodeFails has decode fail by itself behind prefill's answer: what prefill may hold is given back, or counted.
func TestFault54StockDecodeFails(t *testing.T) {
	for _, agent := range []bool{true, false} {
		unhurried(t, map[bool]string{true: "54 agent", false: "54 no agent"}[agent], func(t *testing.T) {
			s, g, f := reclaimingWith(t, connector.NamePush, agent, nil)
			s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Nth: 1, Do: doErrorLate, N: 200}}})
			if r := g.post(pathCompletions, plainBody); r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if agent {
				s.noHeld(t)
				if f.count("prefill") != 1 {
					t.Errorf("prefill was told %d times", f.count("prefill"))
				}
				return
			}
			eventually(t, "what may stay held is counted", func() bool { return g.blocks("prefill-0")[StrandMay] > 0 })
			if n := g.r.Stats().Stranded; n != 0 {
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
			unhurried(t, "12 "+l+" "+connectorName, func(t *testing.T) {
				s, g, _ := reclaiming(t, connectorName, nil)
				s.setFaults(map[string][]fault{l + "-0": {{Leg: l, Nth: 1, Do: doReset}}})
				before := s.c.count("", "")
				if r := g.post(pathCompletions, plainBody); r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				if sum := g.last(1); sum.Attempts != 2 {
					t.Errorf("%d attempts; want 2", sum.Attempts)
				}
				lost := ""
				for _, q := range s.c.all()[before:] {
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
	s, g, f := reclaiming(t, connector.NamePull, nil)
	s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 100}}})
	for range 4 {
		n := s.c.count("", "prefill")
		leave(t, g, plainBody, func() bool { return s.c.count("", "prefill") > n })
	}
	g.last(4)
	s.noHeld(t)
	g.settled()
	f.mu.Lock()
	defer f.mu.Unlock()
	for message, n := range f.told {
		if n != 1 {
			t.Errorf("%s: %d times", message, n)
		}
	}
	if len(f.told) != 4 {
		t.Errorf("told %v; want 4 messages", f.told)
	}
}
