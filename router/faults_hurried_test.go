package router

import (
	"testing"
	"time"

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
		unhurried(t, row.name, func(t *testing.T) {
			s, g, _ := reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Answer = 500 * time.Millisecond })
			s.d[0].mu.Lock()
			s.d[0].mute = row.mute
			s.d[0].mu.Unlock()
			s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 30_000}}})
			for range 4 {
				if r := g.post(pathCompletions, plainBody); r.Status != 504 {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				g.settled()
			}
			s.setFaults(nil)
			if n := g.r.Debug().Pair(0).Opened(); n != 0 {
				t.Errorf("the pair was out %d times", n)
			}
			if d := g.stateOf("decode-0"); d.State != "up" {
				t.Errorf("decode is %q", d.State)
			}
			r := g.post(pathCompletions, plainBody)
			if r.Status != 200 || r.Header.Get("X-Pdrouter-Prefill") != "prefill-0" {
				t.Errorf("status %d, header %v", r.Status, r.Header)
			}
		})
	}
}

// TestFault66ShutdownBehindALook stops the router while decode is asked what it has in hand, for an answer that has come meanwhile: the
// look is waited for, as what it leaves behind would come after the connections were closed.
func TestFault66ShutdownBehindALook(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, connector.NamePush, nil)
		d := s.d[0]
		state := func() (open, looks int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.open, d.looks
		}
		d.mu.Lock()
		d.tells = 900 * time.Millisecond
		d.mu.Unlock()
		s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 1500}}})
		before := s.c.count("", "")
		leave(t, g, plainBody, func() bool { open, _ := state(); return s.c.count("", "") == before+2 && open == 1 })
		eventually(t, "decode is looked at, and has answered", func() bool { open, looks := state(); return open == 0 && looks == 1 })
		g.stop()
		if _, looks := state(); looks != 0 {
			t.Errorf("%d looks are under way", looks)
		}
	})
}
