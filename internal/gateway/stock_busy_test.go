package gateway

import (
	"testing"

	"pdrouter/internal/stocktest"
	metahandshake "pdrouter/metadata/handshake"
)

// TestFault44BusyIsNoRestart: an engine that is too busy with its first handshake to say that it is healthy is not used
// Until it does, and nothing that is known of it is void: the handshake goes on, and leaves nothing behind. What it says
// of itself decides, whatever its health was: the same run needs no other handshake, another one needs one.
func TestFault44BusyIsNoRestart(t *testing.T) {
	for _, row := range []struct {
		name    string
		prefill bool // it is the one that is busy
		mute    bool // decode's side channel is not known
	}{{"prefill", true, false}, {"decode", false, false}, {"decode cannot be asked", false, true}} {
		t.Run(row.name, func(t *testing.T) {
			p, d := stocktest.New(t, "p1", 1), stocktest.New(t, "d1", 1)
			if row.mute {
				d.Side = ""
			}
			e, nth := d, 1
			if row.prefill {
				e, nth = p, 0
			}
			busy := make(chan struct{})
			e.Hold(busy)
			g := stockGateway(t, p, d, "")
			up := func(is bool) func() bool { return func() bool { return g.router.Stats().Engines[nth].Up == is } }
			warm := func() bool { return g.router.Pairs()[0].Warm }
			down := func() {
				t.Helper()
				e.SetHealthy(false)
				Until(t, "the engine is down", up(false))
			}
			expect := func(what string, done uint64) {
				t.Helper()
				Until(t, what+": the pair is warm", warm)
				if s := g.router.Stats(); s.Handshakes.Done != done || s.Handshakes.Failed != [metahandshake.Failures]uint64{} || s.Leaked != 0 {
					t.Errorf("%s: %d handshakes, failed %v, %d leaked; want %d, and nothing else", what, s.Handshakes.Done, s.Handshakes.Failed, s.Leaked, done)
				}
			}
			Until(t, "the handshake is under way", func() bool { return g.router.Stats().Handshakes.InFlight == 1 })
			down()
			e.SetHealthy(true)
			Until(t, "the engine is back before its leg has ended", up(true))
			down()
			close(busy)
			Until(t, "the leg has ended", func() bool { return g.router.Stats().Handshakes.Done == 1 })
			e.SetHealthy(true)
			done, again := uint64(1), uint64(0)
			if row.mute { // it may be another run whenever it comes back
				again = 1
			}
			Until(t, "the engine is back", up(true))
			done += again
			expect("busy with a handshake", done)
			down()
			e.SetHealthy(true)
			Until(t, "the engine is back", up(true))
			done += again
			expect("busy", done)
			down()
			e.Restart("another")
			e.SetHealthy(true)
			done++
			Until(t, "one more handshake", func() bool { return g.router.Stats().Handshakes.Done >= done })
			expect("another run", done)
			Until(t, "a request is split", func() bool { return g.reason(t) == "split" })
		})
	}
}
