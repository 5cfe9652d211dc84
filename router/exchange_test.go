package router

import (
	"errors"
	"io"
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/report"
)

// newOwned is an exchange of the gateway whose owner is the test.
func newOwned(t *testing.T, g *gateway, body string) *exchange {
	t.Helper()
	b, e := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
	if e != nil {
		t.Fatal(e)
	}
	s := g.r.now()
	return g.r.newExchange(&admitted{s: s, m: s.fleet.Models["tiny"], b: b, route: routes[pathCompletions], arrived: time.Now()})
}

// TestWholeStreamIsCompleted has something happen to a request whose client has just been given the terminal event: the answer is whole,
// and nothing comes after its end.
func TestWholeStreamIsCompleted(t *testing.T) {
	for _, kind := range []dispatch.EventKind{dispatch.EvClientLeft, dispatch.EvShutdown, dispatch.EvCanceled} {
		t.Run(kind.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, connector.NameNone, 0, 1)
				g := startIn(t, n, s.cfg, parts)
				x := newOwned(t, g, streamBody)
				x.run()
				if x.reply.stream == nil {
					t.Fatalf("reply %+v, summary %+v", x.reply.err, x.sum)
				}
				for !x.reply.stream.seen {
					if _, err := x.nextEvents(); err != nil {
						t.Fatal(err)
					}
				}
				x.enqueue(envelope{e: dispatch.Event{Kind: kind, Why: reason.Shutdown}})
				events, err := x.nextEvents()
				if !errors.Is(err, io.EOF) {
					t.Errorf("%q, %v; want the end", events, err)
					err = errCut
				} else {
					err = nil
				}
				_ = x.CloseWithError(err)
				if sum := g.last(1); sum.Outcome != report.Completed {
					t.Errorf("summary %+v", sum)
				}
			})
		})
	}
}

// TestFault68PanicAtTheEndOfAStream has a part panic while a stream is ended, where the request has its outcome but nobody was told of it,
// or not all was done about it: the stream is cut, and nobody waits for more of it.
func TestFault68PanicAtTheEndOfAStream(t *testing.T) {
	for name, spoil := range map[string]func(*exchange){
		"before the outcome is told": func(x *exchange) { x.cur = nil },
		"as it is told":              func(x *exchange) { x.timer = nil },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, connector.NameNone, 0, 1)
				s.setFaults(map[string][]fault{"decode-0": {{Do: doLateToken, N: int(time.Minute.Milliseconds())}}})
				g := startIn(t, n, s.cfg, parts)
				x := newOwned(t, g, streamBody)
				x.run()
				if _, err := x.nextEvents(); err != nil {
					t.Fatal(err)
				}
				a, timer := x.cur, x.timer
				x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft}})
				<-x.wake
				spoil(x)
				ended := make(chan error, 1)
				go func() {
					err := errors.New("it panics")
					defer func() { _ = recover(); ended <- err }()
					for _, err = x.nextEvents(); err == nil; {
						_, err = x.nextEvents()
					}
					_ = x.CloseWithError(err)
				}()
				select {
				case err := <-ended:
					if !errors.Is(err, errCut) {
						t.Errorf("the stream has ended with %v; want a cut", err)
					}
				case <-time.After(time.Hour):
					t.Error("somebody waits for more of the stream")
					notify(x.wake)
				}
				timer.Stop()
				a.letGo()
				if x.reply.stream == nil || x.reply.stream.buffers != nil {
					t.Error("the stream's buffers are kept")
				}
				if g.r.live.len() != 0 { // what panics as it is told
					g.r.live.remove(x)
				}
			})
		})
	}
}

// TestPanicLeavesDrainingAlone has the handler panic when its request has its outcome and drains: another goroutine owns the request then, and
// the legs go on.
func TestPanicLeavesDrainingAlone(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NamePush, 1, 1)
		g := startIn(t, n, s.cfg, parts)
		g.warmed()
		s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 500}}})
		x := newOwned(t, g, streamBody)
		time.AfterFunc(100*time.Millisecond, func() {
			x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft}})
		})
		x.run()
		if !x.over || !x.drains {
			t.Fatalf("over %v, drains %v", x.over, x.drains)
		}
		time.Sleep(100 * time.Millisecond)
		x.panicked("in the handler")
		time.Sleep(100 * time.Millisecond)
		if why := x.cur.decode.Cause(); why != nil {
			t.Errorf("decode's leg was ended: %v", why)
		}
		g.settled()
		s.noHeld(t)
	})
}

// TestTransferTimerSparesAnAnswer has the time of a transfer be over when decode's first event is here and its owner has not seen it yet: the
// leg is not ended.
func TestTransferTimerSparesAnAnswer(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NamePull, 1, 1)
		g := startIn(t, n, s.cfg, parts)
		x := newOwned(t, g, streamBody)
		a := &attempt{split: true, reads: true}
		a.decode.join(&g.r.cancels, x.m.Decode[0])
		x.expect(a)
		a.decode.begin()
		time.Sleep(x.s.cfg.Timeouts.Transfer - 1)
		a.decode.kvBecomes(kvOver)
		a.decode.became(dispatch.LegAnswered)
		time.Sleep(time.Second)
		if why := a.decode.Cause(); why != nil {
			t.Errorf("the leg was ended: %v", why)
		}
		a.letGo()
		x.panicked("the end")
	})
}

// TestUnreadTokensOfALeg: how much too large an answer is is known of a leg that is over, and asked of none that its goroutine still writes.
func TestUnreadTokensOfALeg(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 1)
		g := startIn(t, n, s.cfg, parts)
		x := newOwned(t, g, streamBody)
		x.b.Shape, x.b.MaxTokens = openai.ShapeChat, -1
		a := new(attempt)
		a.decode.join(&g.r.cancels, x.m.Decode[0])
		a.decode.begin()
		x.cur, x.why = a, reason.AnswerTooLarge
		a.decode.err = sse.ErrTooLarge
		if n := x.unreadTokens(); n != 0 {
			t.Errorf("%d tokens of a leg that is asked", n)
		}
		a.decode.became(dispatch.LegWhole)
		if x.unreadTokens() == 0 {
			t.Error("no tokens of one that is over")
		}
		x.panicked("the end")
	})
}
