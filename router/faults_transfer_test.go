package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/reclaim"
)

// TestFault54UnstreamedTransferNeverComes has stock prefill answer and write nothing, where decode's answer says nothing of that: what
// decode has in hand shows it, or that prefill is gone, or is another run. The request is tried again under new ids.
func TestFault54UnstreamedTransferNeverComes(t *testing.T) {
	for _, row := range []struct {
		name     string
		transfer time.Duration
		mute     bool // decode does not tell what it has in hand
		then     func(g *routertest.Gateway, s *routertest.Pool, f *routertest.Reclaimer)
	}{
		{"decode has nothing to do", time.Second, false, func(*routertest.Gateway, *routertest.Pool, *routertest.Reclaimer) {}},
		{"looks at decode fail", time.Second, false, func(_ *routertest.Gateway, s *routertest.Pool, _ *routertest.Reclaimer) {
			s.Decode[0].Mu.Lock()
			s.Decode[0].Breaks = 4 // a look on a kept connection is sent twice
			s.Decode[0].Mu.Unlock()
		}},
		{"prefill dies behind the transfer's time", time.Second, true, func(_ *routertest.Gateway, s *routertest.Pool, f *routertest.Reclaimer) {
			time.Sleep(5 * time.Second)
			f.Died("prefill-0")
			_ = s.Prefill[0].Server.Listener.Close()
			s.Prefill[0].Server.CloseClientConnections()
		}},
		{"prefill dies", time.Minute, true, func(g *routertest.Gateway, s *routertest.Pool, f *routertest.Reclaimer) {
			f.Died("prefill-0")
			_ = s.Prefill[0].Server.Listener.Close()
			s.Prefill[0].Server.CloseClientConnections()
		}},
		{"prefill is another run", time.Minute, true, func(g *routertest.Gateway, s *routertest.Pool, f *routertest.Reclaimer) {
			s.Prefill[0].Mu.Lock()
			s.Prefill[0].ID += "'"
			s.Prefill[0].Mu.Unlock()
			g.Router.Debug().Engine("prefill-0").Look()
		}},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) {
				c.Timeouts.Transfer, c.Timeouts.RequestTotal, c.Timeouts.Health = row.transfer, 2*time.Minute, 200*time.Millisecond
			})
			s.Decode[0].Mu.Lock()
			s.Decode[0].Mute = row.mute
			s.Decode[0].Mu.Unlock()
			before := s.Cluster.Count("", "")
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}}})
			got := make(chan routertest.Reply)
			go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
			routertest.Eventually(t, "prefill has answered, and decode waits", func() bool {
				return s.Cluster.Count("", "") >= before+2 && s.Prefill[0].UnderWay() == 0 && s.Decode[0].UnderWay() == 1
			})
			row.then(g, s, f)
			r := <-got
			if said, _ := routertest.Text(t, r); r.Status != 200 || said != routertest.WholeText {
				t.Errorf("status %d, %q", r.Status, said)
			}
			if sum := g.Summary(1); sum.Attempts != 2 || sum.Outcome != dispatch.Completed {
				t.Errorf("summary %+v", sum)
			}
			checkDispatches(t, s.Cluster.All()[before:])
		})
	}
}

// TestFault58UnstreamedLeavesUnknown has the client of an answer that is not streamed leave behind prefill's answer. Where decode says
// that all it has is at work it had its blocks; where it does not, what it may hold is counted.
func TestFault58UnstreamedLeavesUnknown(t *testing.T) {
	for _, row := range []struct {
		name   string
		faults map[string][]routertest.Fault
		mute   bool
		leaked bool
	}{
		{"at work", map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 30_000}}}, false, false},
		{"at work, and does not tell", map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 30_000}}}, true, true},
		{"waits for its blocks", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}}}, false, false},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, _ := routertest.Reclaiming(t, connector.NamePush, nil)
			s.Decode[0].Mu.Lock()
			s.Decode[0].Mute = row.mute
			s.Decode[0].Mu.Unlock()
			s.SetFaults(row.faults)
			before := s.Cluster.Count("", "")
			leave(t, g, routertest.PlainBody, func() bool {
				return s.Cluster.Count("", "") == before+2 && s.Prefill[0].UnderWay() == 0 && s.Decode[0].UnderWay() == 1
			})
			if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.WaitIdle()
			if n := g.Blocks("decode-0")[reclaim.CausePossible.String()]; row.leaked != (n > 0) {
				t.Errorf("%d blocks may be held by decode; want any: %v", n, row.leaked)
			}
			if !row.leaked {
				s.CheckNothingHeld(t)
			}
		})
	}
}

// TestFault54UnstreamedDecodeIsBusy has prefill die behind the time of a transfer, in the middle of it, while decode generates for
// others: what decode has in hand does not show that this one waits in vain.
func TestFault54UnstreamedDecodeIsBusy(t *testing.T) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) {
			c.Timeouts.Transfer, c.Timeouts.RequestTotal, c.Timeouts.Health = time.Second, 2*time.Minute, 200*time.Millisecond
		})
		s.SetFaults(map[string][]routertest.Fault{
			"decode-0":  {{Leg: "decode", Nth: 1, Do: routertest.DoLateToken, N: 30_000}},
			"prefill-0": {{Leg: "prefill", Nth: 2, Do: routertest.DoNeverKV}},
		})
		other, got := make(chan routertest.Reply), make(chan routertest.Reply)
		go func() { other <- g.Post(routertest.PathCompletions, routertest.StreamBody) }()
		routertest.Eventually(t, "decode is at work", func() bool {
			s.Decode[0].Mu.Lock()
			defer s.Decode[0].Mu.Unlock()
			return s.Decode[0].Works == 1
		})
		go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
		routertest.Eventually(t, "decode waits", func() bool { return s.Prefill[0].UnderWay() == 0 && s.Decode[0].UnderWay() == 2 })
		time.Sleep(5 * time.Second)
		f.Died("prefill-0")
		_ = s.Prefill[0].Server.Listener.Close()
		s.Prefill[0].Server.CloseClientConnections()
		died := time.Now()
		r := <-got
		if said, _ := routertest.Text(t, r); r.Status != 200 || said != routertest.WholeText {
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
	lostBeside(t, routertest.StreamBody, routertest.Fault{Leg: "decode", Nth: 1, Do: routertest.DoLateToken, N: 30_000}, func(d *routertest.Engine, _ router.DebugEngine) bool {
		d.Mu.Lock()
		defer d.Mu.Unlock()
		return d.Works == 1
	})
}

// TestFault54UnstreamedBesideUnstreamed has prefill answer and write nothing while it lives, and decode generate an answer for another
// request, which is not streamed either. A look has shown that the other has its KV, so that the one that waits is known.
func TestFault54UnstreamedBesideUnstreamed(t *testing.T) {
	lostBeside(t, routertest.PlainBody, routertest.Fault{Leg: "decode", Nth: 1, Do: routertest.DoSlow, N: 60_000}, func(_ *routertest.Engine, e router.DebugEngine) bool {
		return e.Supplied() == 1
	})
}

// lostBeside has what prefill writes for a request never come, while decode generates for another one, as slow says, that is known to
// have its KV. The request is tried again within the time of a transfer and two looks, the other one is left alone.
func lostBeside(t *testing.T, body string, slow routertest.Fault, known func(*routertest.Engine, router.DebugEngine) bool) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, _ := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer, c.Timeouts.RequestTotal = 5*time.Second, 2*time.Minute })
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {slow}, "prefill-0": {{Leg: "prefill", Nth: 2, Do: routertest.DoNeverKV}}})
		other := make(chan routertest.Reply)
		go func() { other <- g.Post(routertest.PathCompletions, body) }()
		e := g.Router.Debug().Engine("decode-0")
		routertest.Eventually(t, "the other one is known to have its KV", func() bool { return known(s.Decode[0], e) })
		began := time.Now()
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if said, _ := routertest.Text(t, r); r.Status != 200 || said != routertest.WholeText {
			t.Errorf("status %d, %q", r.Status, said)
		}
		if took := time.Since(began); took < 5*time.Second || took > 5*time.Second+2*router.LoadApart {
			t.Errorf("it took %v", took)
		}
		if r := <-other; r.Status != 200 {
			t.Errorf("the other one: status %d", r.Status)
		}
		if sum := g.Summary(2); sum.Attempts != 1 {
			t.Errorf("the other one took %d attempts", sum.Attempts)
		}
		g.WaitIdle()
		s.CheckNothingHeld(t)
		if n := e.Supplied() + e.Overdue(); n != 0 {
			t.Errorf("%d legs are still counted", n)
		}
	})
}

// TestFault54UnstreamedLeaseEnds has the lease of prefill end before decode has registered, while decode generates answers for others that
// are not streamed either: prefill's count of such leases shows that the request which is overdue waits in vain.
func TestFault54UnstreamedLeaseEnds(t *testing.T) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, _ := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer, c.Timeouts.RequestTotal = 5*time.Second, 2*time.Minute })
		s.SetFaults(map[string][]routertest.Fault{
			"decode-0":  {{Leg: "decode", Do: routertest.DoSlow, N: 2000}},
			"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}},
		})
		got := make(chan routertest.Reply)
		go func() { got <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
		routertest.Eventually(t, "decode waits", func() bool { return s.Prefill[0].UnderWay() == 0 && s.Decode[0].UnderWay() == 1 })
		began, ended := time.Now(), false
		for others := range 60 {
			if others == 5 { // 10 s
				s.Prefill[0].Mu.Lock()
				s.Prefill[0].Expired++
				s.Prefill[0].Mu.Unlock()
			}
			if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
				t.Fatalf("another one: status %d: %s", r.Status, r.Body)
			}
			select {
			case r := <-got:
				ended = true
				if said, _ := routertest.Text(t, r); r.Status != 200 || said != routertest.WholeText {
					t.Errorf("status %d, %q", r.Status, said)
				}
			default:
			}
			if ended {
				break
			}
		}
		if took := time.Since(began); !ended || took < 10*time.Second || took > 10*time.Second+router.LoadSeldom+3*router.LoadApart {
			t.Errorf("it took %v", took)
		}
		g.WaitIdle()
		s.CheckNothingHeld(t)
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
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			began := time.Now()
			s, g, f := routertest.ReclaimingFrom(t, connector.NamePush, row.agent, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}}}, func(c *config.Config) {
				c.Timeouts.Transfer, c.Timeouts.Probe = 5*time.Second, time.Minute
			})
			routertest.Eventually(t, "the pair is ready", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
			if took := time.Since(began); took > 5*time.Second+3*router.LoadApart {
				t.Errorf("the pair was ready after %v", took)
			}
			if row.agent {
				s.CheckNothingHeld(t)
			} else {
				routertest.Eventually(t, "what stays held is counted", func() bool { return g.Blocks("decode-0")[reclaim.CauseNoAgent.String()] > 0 })
			}
			g.WaitIdle()
			if n := f.Count("decode"); row.agent != (n == 1) {
				t.Errorf("decode was told %d times", n)
			}
			if n := g.Router.Stats().Leaked; row.agent != (n == 0) {
				t.Errorf("%d leaked", n)
			}
		})
	}
}

// TestFault58StreamLeavesAndNothingCame has the client of a stream leave while decode waits for what prefill never writes, as its lease
// has ended: decode is told of it, and of nothing else, while others are served.
func TestFault58StreamLeavesAndNothingCame(t *testing.T) {
	for _, body := range []string{routertest.StreamBody, routertest.PlainBody} {
		routertest.RunVirtual(t, map[bool]string{true: "streamed", false: "not streamed"}[body == routertest.StreamBody], func(t *testing.T) {
			s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Transfer = 3 * time.Second })
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}, {Leg: "prefill", Nth: 2, Do: routertest.DoNeverKV}}})
			before := s.Cluster.Count("", "")
			for range 2 {
				n := s.Cluster.Count("", "")
				leave(t, g, body, func() bool {
					return s.Cluster.Count("", "") == n+2 && s.Prefill[0].UnderWay() == 0 && s.Decode[0].UnderWay() > 0
				})
			}
			g.Summary(2)
			for range 3 {
				if r := g.Post(routertest.PathCompletions, body); r.Status != 200 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			}
			s.CheckNothingHeld(t)
			g.WaitIdle()
			if n := f.Count("decode"); n != 2 {
				t.Errorf("decode was told %d times; want 2", n)
			}
			if n := g.Router.Stats().Leaked; n != 0 {
				t.Errorf("%d leaked", n)
			}
			checkDispatches(t, s.Cluster.All()[before:])
		})
	}
}
