package router

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestFault54UnstreamedTransferNeverComes has stock prefill answer and write nothing, where decode's answer says nothing of that: what
// decode has in hand shows it, or that prefill is gone, or is another run. The request is tried again under new ids.
func TestFault54UnstreamedTransferNeverComes(t *testing.T) {
	for _, row := range []struct {
		name     string
		transfer time.Duration
		mute     bool // decode does not tell what it has in hand
		then     func(g *gateway, s *pool, f *fakeReclaimer)
	}{
		{"decode has nothing to do", time.Second, false, func(*gateway, *pool, *fakeReclaimer) {}},
		{"looks at decode fail", time.Second, false, func(_ *gateway, s *pool, _ *fakeReclaimer) {
			s.d[0].mu.Lock()
			s.d[0].breaks = 4 // a look on a kept connection is sent twice
			s.d[0].mu.Unlock()
		}},
		{"prefill dies behind the transfer's time", time.Second, true, func(_ *gateway, s *pool, f *fakeReclaimer) {
			time.Sleep(5 * time.Second)
			f.died("prefill-0")
			_ = s.p[0].srv.Listener.Close()
			s.p[0].srv.CloseClientConnections()
		}},
		{"prefill dies", time.Minute, true, func(g *gateway, s *pool, f *fakeReclaimer) {
			f.died("prefill-0")
			_ = s.p[0].srv.Listener.Close()
			s.p[0].srv.CloseClientConnections()
		}},
		{"prefill is another run", time.Minute, true, func(g *gateway, s *pool, f *fakeReclaimer) {
			s.p[0].mu.Lock()
			s.p[0].id += "'"
			s.p[0].mu.Unlock()
			g.r.Debug().Engine("prefill-0").Look()
		}},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) {
				c.Timeouts.Transfer, c.Timeouts.Answer, c.Timeouts.Health = row.transfer, 2*time.Minute, 200*time.Millisecond
			})
			s.d[0].mu.Lock()
			s.d[0].mute = row.mute
			s.d[0].mu.Unlock()
			before := s.c.count("", "")
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}}})
			got := make(chan clientReply)
			go func() { got <- g.post(pathCompletions, plainBody) }()
			eventually(t, "prefill has answered, and decode waits", func() bool {
				return s.c.count("", "") >= before+2 && s.p[0].underWay() == 0 && s.d[0].underWay() == 1
			})
			row.then(g, s, f)
			r := <-got
			if said, _ := text(t, r); r.Status != 200 || said != wholeText {
				t.Errorf("status %d, %q", r.Status, said)
			}
			if sum := g.last(1); sum.Attempts != 2 || sum.Outcome != report.Completed {
				t.Errorf("summary %+v", sum)
			}
			checkDispatches(t, s.c.all()[before:])
		})
	}
}

// TestFault58UnstreamedLeavesUnknown has the client of an answer that is not streamed leave behind prefill's answer. Where decode says
// that all it has is at work it had its blocks; where it does not, what it may hold is counted.
func TestFault58UnstreamedLeavesUnknown(t *testing.T) {
	for _, row := range []struct {
		name     string
		faults   map[string][]fault
		mute     bool
		stranded bool
	}{
		{"at work", map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 30_000}}}, false, false},
		{"at work, and does not tell", map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 30_000}}}, true, true},
		{"waits for its blocks", map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}}}, false, false},
	} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, _ := reclaiming(t, connector.NamePush, nil)
			s.d[0].mu.Lock()
			s.d[0].mute = row.mute
			s.d[0].mu.Unlock()
			s.setFaults(row.faults)
			before := s.c.count("", "")
			leave(t, g, plainBody, func() bool {
				return s.c.count("", "") == before+2 && s.p[0].underWay() == 0 && s.d[0].underWay() == 1
			})
			if sum := g.last(1); sum.Outcome != report.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.settled()
			if n := g.blocks("decode-0")[StrandMay]; row.stranded != (n > 0) {
				t.Errorf("%d blocks may be held by decode; want any: %v", n, row.stranded)
			}
			if !row.stranded {
				s.noHeld(t)
			}
		})
	}
}

// TestFault54UnstreamedDecodeIsBusy has prefill die behind the time of a transfer, in the middle of it, while decode generates for
// others: what decode has in hand does not show that this one waits in vain.
func TestFault54UnstreamedDecodeIsBusy(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) {
			c.Timeouts.Transfer, c.Timeouts.Answer, c.Timeouts.Health = time.Second, 2*time.Minute, 200*time.Millisecond
		})
		s.setFaults(map[string][]fault{
			"decode-0":  {{Leg: "decode", Nth: 1, Do: doLateToken, N: 30_000}},
			"prefill-0": {{Leg: "prefill", Nth: 2, Do: doNeverKV}},
		})
		other, got := make(chan clientReply), make(chan clientReply)
		go func() { other <- g.post(pathCompletions, streamBody) }()
		eventually(t, "decode is at work", func() bool {
			s.d[0].mu.Lock()
			defer s.d[0].mu.Unlock()
			return s.d[0].works == 1
		})
		go func() { got <- g.post(pathCompletions, plainBody) }()
		eventually(t, "decode waits", func() bool { return s.p[0].underWay() == 0 && s.d[0].underWay() == 2 })
		time.Sleep(5 * time.Second)
		f.died("prefill-0")
		_ = s.p[0].srv.Listener.Close()
		s.p[0].srv.CloseClientConnections()
		died := time.Now()
		r := <-got
		if said, _ := text(t, r); r.Status != 200 || said != wholeText {
			t.Errorf("status %d, %q", r.Status, said)
		}
		if late := time.Since(died); late > 10*time.Second {
			t.Errorf("%v from its death", late)
		}
		if r := <-other; r.Status != 200 {
			t.Errorf("the other one: status %d", r.Status)
		}
	})
}

// TestFault54UnstreamedBesideStreams has prefill answer and write nothing while it lives, and decode generate streams for others: all that
// is at work there has brought tokens, so that the request, which has not, is tried again within the time of a transfer.
func TestFault54UnstreamedBesideStreams(t *testing.T) {
	lostBeside(t, streamBody, fault{Leg: "decode", Nth: 1, Do: doLateToken, N: 30_000}, func(d *fakeVLLM, _ DebugEngine) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.works == 1
	})
}

// TestFault54UnstreamedBesideUnstreamed has prefill answer and write nothing while it lives, and decode generate an answer for another
// request, which is not streamed either. A look has shown that the other has its KV, so that the one that waits is known.
func TestFault54UnstreamedBesideUnstreamed(t *testing.T) {
	lostBeside(t, plainBody, fault{Leg: "decode", Nth: 1, Do: doSlow, N: 60_000}, func(_ *fakeVLLM, e DebugEngine) bool {
		return e.Supplied() == 1
	})
}

// lostBeside has what prefill writes for a request never come, while decode generates for another one, as slow says, that is known to
// have its KV. The request is tried again within the time of a transfer and two looks, the other one is left alone.
func lostBeside(t *testing.T, body string, slow fault, known func(*fakeVLLM, DebugEngine) bool) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer, c.Timeouts.Answer = 5*time.Second, 2*time.Minute })
		s.setFaults(map[string][]fault{"decode-0": {slow}, "prefill-0": {{Leg: "prefill", Nth: 2, Do: doNeverKV}}})
		other := make(chan clientReply)
		go func() { other <- g.post(pathCompletions, body) }()
		e := g.r.Debug().Engine("decode-0")
		eventually(t, "the other one is known to have its KV", func() bool { return known(s.d[0], e) })
		began := time.Now()
		r := g.post(pathCompletions, plainBody)
		if said, _ := text(t, r); r.Status != 200 || said != wholeText {
			t.Errorf("status %d, %q", r.Status, said)
		}
		if took := time.Since(began); took < 5*time.Second || took > 5*time.Second+2*LoadApart {
			t.Errorf("it took %v", took)
		}
		if r := <-other; r.Status != 200 {
			t.Errorf("the other one: status %d", r.Status)
		}
		if sum := g.last(2); sum.Attempts != 1 {
			t.Errorf("the other one took %d attempts", sum.Attempts)
		}
		g.settled()
		s.noHeld(t)
		if n := e.Supplied() + e.Overdue(); n != 0 {
			t.Errorf("%d legs are still counted", n)
		}
	})
}

// TestFault54UnstreamedLeaseEnds has the lease of prefill end before decode has registered, while decode generates answers for others that
// are not streamed either: prefill's count of such leases shows that the request which is overdue waits in vain.
func TestFault54UnstreamedLeaseEnds(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer, c.Timeouts.Answer = 5*time.Second, 2*time.Minute })
		s.setFaults(map[string][]fault{
			"decode-0":  {{Leg: "decode", Do: doSlow, N: 2000}},
			"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}},
		})
		got := make(chan clientReply)
		go func() { got <- g.post(pathCompletions, plainBody) }()
		eventually(t, "decode waits", func() bool { return s.p[0].underWay() == 0 && s.d[0].underWay() == 1 })
		began, ended := time.Now(), false
		for others := range 60 {
			if others == 5 { // 10 s
				s.p[0].mu.Lock()
				s.p[0].expired++
				s.p[0].mu.Unlock()
			}
			if r := g.post(pathCompletions, plainBody); r.Status != 200 {
				t.Fatalf("another one: status %d: %s", r.Status, r.Body)
			}
			select {
			case r := <-got:
				ended = true
				if said, _ := text(t, r); r.Status != 200 || said != wholeText {
					t.Errorf("status %d, %q", r.Status, said)
				}
			default:
			}
			if ended {
				break
			}
		}
		if took := time.Since(began); !ended || took < 10*time.Second || took > 10*time.Second+LoadSeldom+3*LoadApart {
			t.Errorf("it took %v", took)
		}
		g.settled()
		s.noHeld(t)
	})
}

// TestFault54HandshakeTransferNeverComes has what prefill writes for handshakes never come. Decode tells that it has nothing to do, so
// that the handshake ends within the time of a transfer, not only within that of a handshake, and the next one is made. What decode holds
// comes free as it does for a request, or is counted where decode cannot be told.
func TestFault54HandshakeTransferNeverComes(t *testing.T) {
	for _, row := range []struct {
		name  string
		agent bool
	}{{"agent", true}, {"no agent", false}} {
		unhurried(t, row.name, func(t *testing.T) {
			began := time.Now()
			s, g, f := reclaimingFrom(t, connector.NamePush, row.agent, map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}}}, func(c *config.Config) {
				c.Timeouts.Transfer, c.Timeouts.Probe = 5*time.Second, time.Minute
			})
			eventually(t, "the pair is ready", func() bool { return g.r.Stats().Handshakes.Ready == 1 })
			if took := time.Since(began); took > 5*time.Second+3*LoadApart {
				t.Errorf("the pair was ready after %v", took)
			}
			if row.agent {
				s.noHeld(t)
			} else {
				eventually(t, "what stays held is counted", func() bool { return g.blocks("decode-0")[StrandNoAgent] > 0 })
			}
			g.settled()
			if n := f.count("decode"); row.agent != (n == 1) {
				t.Errorf("decode was told %d times", n)
			}
			if n := g.r.Stats().Stranded; row.agent != (n == 0) {
				t.Errorf("%d stranded", n)
			}
		})
	}
}

// TestFault58StreamLeavesAndNothingCame has the client of a stream leave while decode waits for what prefill never writes, as its lease
// has ended: decode is told of it, and of nothing else, while others are served.
func TestFault58StreamLeavesAndNothingCame(t *testing.T) {
	for _, body := range []string{streamBody, plainBody} {
		unhurried(t, map[bool]string{true: "streamed", false: "not streamed"}[body == streamBody], func(t *testing.T) {
			s, g, f := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer = 3 * time.Second })
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doNeverKV}, {Leg: "prefill", Nth: 2, Do: doNeverKV}}})
			before := s.c.count("", "")
			for range 2 {
				n := s.c.count("", "")
				leave(t, g, body, func() bool { return s.c.count("", "") == n+2 && s.p[0].underWay() == 0 && s.d[0].underWay() > 0 })
			}
			g.last(2)
			for range 3 {
				if r := g.post(pathCompletions, body); r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			}
			s.noHeld(t)
			g.settled()
			if n := f.count("decode"); n != 2 {
				t.Errorf("decode was told %d times; want 2", n)
			}
			if n := g.r.Stats().Stranded; n != 0 {
				t.Errorf("%d stranded", n)
			}
			checkDispatches(t, s.c.all()[before:])
		})
	}
}
