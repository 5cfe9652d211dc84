package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestFault58LateIsNoTransferThatFailed has the time of answers that are not streamed end, again and again, while decode generates what
// prefill has written: nothing has failed between the two, which go on together.
func TestFault58LateIsNoTransferThatFailed(t *testing.T) {
	for _, row := range []struct {
		name string
		mute bool // decode does not tell what it has in hand
	}{{"at work", false}, {"at work, and does not tell", true}} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, _ := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.RequestTotal = 500 * time.Millisecond })
			s.Decode[0].Mu.Lock()
			s.Decode[0].Mute = row.mute
			s.Decode[0].Mu.Unlock()
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 30_000}}})
			for range 4 {
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 504 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				g.WaitIdle()
			}
			s.SetFaults(nil)
			if n := g.Router.Debug().Pair(0).Opened(); n != 0 {
				t.Errorf("the pair was out %d times", n)
			}
			if d := g.EngineStats("decode-0"); d.State != "up" {
				t.Errorf("decode is %q", d.State)
			}
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if r.Status != 200 || r.Header.Get("X-Pdrouter-Prefill") != "prefill-0" {
				t.Errorf("status %d, header %v", r.Status, r.Header)
			}
		})
	}
}

// TestFault66ShutdownBehindALook stops the router while decode is asked what it has in hand, for an answer that has come meanwhile: the
// look is waited for, as what it leaves behind would come after the connections were closed.
func TestFault66ShutdownBehindALook(t *testing.T) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, _ := routertest.Reclaiming(t, connector.NamePush, nil)
		d := s.Decode[0]
		state := func() (open, looks int) {
			d.Mu.Lock()
			defer d.Mu.Unlock()
			return d.Open, d.Looks
		}
		d.Mu.Lock()
		d.Tells = 900 * time.Millisecond
		d.Mu.Unlock()
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 1500}}})
		before := s.Cluster.Count("", "")
		leave(t, g, routertest.PlainBody, func() bool { open, _ := state(); return s.Cluster.Count("", "") == before+2 && open == 1 })
		routertest.Eventually(t, "decode is looked at, and has answered", func() bool { open, looks := state(); return open == 0 && looks == 1 })
		g.Stop()
		if _, looks := state(); looks != 0 {
			t.Errorf("%d looks are under way", looks)
		}
	})
}
