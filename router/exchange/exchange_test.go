package exchange_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
)

// TestWholeStreamIsCompleted has something happen to a request whose client has just been given the terminal event: the answer is whole,
// and nothing comes after its end.
func TestWholeStreamIsCompleted(t *testing.T) {
	for _, kind := range []dispatch.EventKind{dispatch.EvClientLeft, dispatch.EvShutdown, dispatch.EvCanceled} {
		t.Run(kind.String(), func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
				g := routertest.StartIn(t, n, s.Config, parts)
				x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(routertest.StreamBody)
				x.Run()
				if !x.Streams() {
					t.Fatalf("reply %+v, summary %+v", x.Refused(), x.Summary())
				}
				for !x.SeenEnd() {
					if _, err := x.NextEvents(); err != nil {
						t.Fatal(err)
					}
				}
				x.Deliver(dispatch.Event{Kind: kind, Why: reason.Shutdown})
				events, err := x.NextEvents()
				if !errors.Is(err, io.EOF) {
					t.Errorf("%q, %v; want the end", events, err)
					err = relay.ErrCut
				} else {
					err = nil
				}
				_ = x.CloseWithError(err)
				if sum := g.Summary(1); sum.Outcome != dispatch.Completed {
					t.Errorf("summary %+v", sum)
				}
			})
		})
	}
}

// TestFault68PanicAtTheEndOfAStream has a part panic while a stream is ended, where the request has its outcome but nobody was told of it,
// or not all was done about it: the stream is cut, and nobody waits for more of it.
func TestFault68PanicAtTheEndOfAStream(t *testing.T) {
	for name, spoil := range map[string]func(exchange.Owned){
		"before the outcome is told": exchange.Owned.SpoilAttempt,
		"as it is told":              exchange.Owned.SpoilTimer,
	} {
		t.Run(name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
				s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoLateToken, N: int(time.Minute.Milliseconds())}}})
				g := routertest.StartIn(t, n, s.Config, parts)
				x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(routertest.StreamBody)
				x.Run()
				if _, err := x.NextEvents(); err != nil {
					t.Fatal(err)
				}
				cleanUp := x.CleanUp()
				x.Deliver(dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft})
				x.AwaitWake()
				spoil(x)
				ended := make(chan error, 1)
				go func() {
					err := errors.New("it panics")
					defer func() { _ = recover(); ended <- err }()
					for _, err = x.NextEvents(); err == nil; {
						_, err = x.NextEvents()
					}
					_ = x.CloseWithError(err)
				}()
				select {
				case err := <-ended:
					if !errors.Is(err, relay.ErrCut) {
						t.Errorf("the stream has ended with %v; want a cut", err)
					}
				case <-time.After(time.Hour):
					t.Error("somebody waits for more of the stream")
					x.Wake()
				}
				cleanUp()
				if !x.Streams() || x.HasBuffers() {
					t.Error("the stream's buffers are kept")
				}
			})
		})
	}
}

// TestPanicLeavesDrainingAlone has the handler panic when its request has its outcome and drains: another goroutine owns the request then, and
// the legs go on.
func TestPanicLeavesDrainingAlone(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NamePush, 1, 1)
		g := routertest.StartIn(t, n, s.Config, parts)
		g.WaitWarm()
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 500}}})
		x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(routertest.StreamBody)
		time.AfterFunc(100*time.Millisecond, func() {
			x.Deliver(dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft})
		})
		x.Run()
		if !x.Ended() || !x.Drains() {
			t.Fatalf("over %v, drains %v", x.Ended(), x.Drains())
		}
		time.Sleep(100 * time.Millisecond)
		x.Panicked("in the handler")
		time.Sleep(100 * time.Millisecond)
		if why := x.DecodeCause(); why != nil {
			t.Errorf("decode's leg was ended: %v", why)
		}
		g.WaitIdle()
		s.CheckNothingHeld(t)
	})
}

// TestTransferTimerSparesAnAnswer has the time of a transfer be over when decode's first event is here and its owner has not seen it yet: the
// leg is not ended.
func TestTransferTimerSparesAnAnswer(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NamePull, 1, 1)
		g := routertest.StartIn(t, n, s.Config, parts)
		x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(routertest.StreamBody)
		if why := x.AnswerAtTransferTime(); why != nil {
			t.Errorf("the leg was ended: %v", why)
		}
		x.Panicked("the end")
	})
}

// TestUnreadTokensOfALeg: how much too large an answer is is known of a leg that is over, and asked of none that its goroutine still writes.
func TestUnreadTokensOfALeg(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		g := routertest.StartIn(t, n, s.Config, parts)
		x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(routertest.StreamBody)
		asked, over := x.UnreadTokens()
		if asked != 0 {
			t.Errorf("%d tokens of a leg that is asked", asked)
		}
		if over == 0 {
			t.Error("no tokens of one that is over")
		}
		x.Panicked("the end")
	})
}
