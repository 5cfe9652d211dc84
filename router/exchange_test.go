package router

import (
	"errors"
	"io"
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
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
	return g.r.newExchange(&admitted{s: s, m: s.fleet.models["tiny"], b: b, route: routes[pathCompletions], arrived: time.Now()})
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
