package router_test

import (
	"context"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/reclaim"
)

// TestLoadIsSeenForAll has the first of two who look at one engine's load go while the look is under way: the other has what it brings.
func TestLoadIsSeenForAll(t *testing.T) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, _ := routertest.Reclaiming(t, connector.NamePush, nil)
		d := s.Decode[0]
		time.Sleep(time.Second) // the gateway looks by itself when it has begun
		d.Mu.Lock()
		d.Tells = 500 * time.Millisecond
		d.Mu.Unlock()
		looks := func() int {
			d.Mu.Lock()
			defer d.Mu.Unlock()
			return d.Looks
		}
		e := g.Router.Debug().Engine("decode-0")
		first, leave := context.WithCancel(t.Context())
		ended := make(chan bool, 2)
		see := func(ctx context.Context) { ended <- e.Load(ctx) }
		go see(first)
		routertest.Eventually(t, "somebody looks", func() bool { return looks() == 1 })
		go func() {
			time.Sleep(50 * time.Millisecond)
			leave()
		}()
		see(t.Context())
		if one, two := <-ended, <-ended; one || !two {
			t.Errorf("they know: %v, %v; want the second alone", one, two)
		}
	})
}

// TestStrandedIsCountedAgain: an engine is said to hold no more blocks for nobody than it uses, as it says at two health checks in a row.
// What it is known to hold is said no more once it uses none.
func TestStrandedIsCountedAgain(t *testing.T) {
	routertest.RunVirtual(t, "push", func(t *testing.T) {
		s, g, _ := routertest.Reclaiming(t, connector.NamePush, nil)
		d, e := s.Decode[0], g.Router.Debug().Engine("decode-0")
		says := func(usage string) {
			d.Mu.Lock()
			d.Usage = usage
			d.Mu.Unlock()
		}
		check := func(when string, known, unresolved int) {
			t.Helper()
			held, stats := 0, g.EngineStats("decode-0")
			for _, n := range stats.Leaked {
				held += n
			}
			if n := stats.MaybeLeaked; held != known || n != unresolved {
				t.Errorf("%s: %d blocks held, %d may be; want %d and %d", when, held, n, known, unresolved)
			}
		}
		e.AddLeak(reclaim.CausePossible, 100, false)
		e.AddLeak(reclaim.CausePossible, 43, true)
		e.AddLeak(reclaim.CauseNotNotified, 2, false)
		time.Sleep(10 * time.Second)
		check("it does not say", 2, 143)
		says("0.02") // of 100 blocks
		time.Sleep(10 * time.Second)
		check("it uses 2 blocks", 2, 2)
		if said, used := e.Recount(t.Context(), 3); said != 4 || used != 2 {
			t.Errorf("the look has shown %d, %d", said, used)
		}
		says("0.0")
		if e.Recount(t.Context(), 3); e.Leaked() != 4 {
			t.Error("forgotten though more has come since it said so")
		}
		time.Sleep(10 * time.Second)
		check("it uses none", 0, 0)
	})
}
