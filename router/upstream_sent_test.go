package router

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// TestSentGoesOn has the wait for an answer be ended at every place, and somebody else go on with it: he has the answer, of the
// connection that was asked, and the engine was asked once.
func TestSentGoesOn(t *testing.T) {
	const head, body = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "0123456789"
	for _, row := range []struct {
		name, first string // what has come when the wait ends
		early       bool   // it ends before it begins
		conns       int32
	}{
		{"before it is sent", "", true, 2}, // it was not seen that the connection is quiet
		{"before a byte", "", false, 1},
		{"in the head", head[:20], false, 1},
		{"behind the head", head, false, 1},
		{"in the body", head + body[:5], false, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			asked, rest := make(chan struct{}), make(chan struct{})
			e := newFakeEngine(t, upstreamConfig{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
				for {
					if _, ok := e.request(r); !ok {
						return
					}
					if e.requests.Load() != 2 {
						io.WriteString(c, head+body)
						continue
					}
					io.WriteString(c, row.first)
					close(asked)
					<-rest
					io.WriteString(c, strings.TrimPrefix(head+body, row.first))
				}
			})
			if _, _, err := ask(patience(t), e.upstream, post("{}")); err != nil {
				t.Fatal(err)
			}
			l, req := new(leash), post("{}")
			if row.early {
				l.nudge()
			} else {
				go func() {
					<-asked
					l.nudge()
				}()
			}
			s := e.begin(l, req)
			if s.whole() {
				t.Error("all of the answer is said to be here")
			}
			l.calm()
			close(rest)
			r, err := e.answer(l, req, s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.ReadAll(nil, 100)
			if r.Close(); err != nil || string(got) != body || r.Resent || e.requests.Load() != 2 || e.conns.Load() != row.conns {
				t.Errorf("got %q, %v, sent again: %v, %d requests on %d connections, want %q on %d", got, err, r.Resent, e.requests.Load(), e.conns.Load(), body, row.conns)
			}
			if _, got, err := ask(patience(t), e.upstream, post("{}")); err == nil && got == "" || e.conns.Load() != row.conns {
				t.Errorf("behind it: %q, %v on %d connections", got, err, e.conns.Load())
			}
		})
	}
}

// TestSentFails has the wait fail behind the answer's head: the leg fails with it, and its connection is used no more.
func TestSentFails(t *testing.T) {
	e := newFakeEngine(t, upstreamConfig{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
		for {
			if _, ok := e.request(r); !ok {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		}
	})
	if _, _, err := ask(patience(t), e.upstream, post("{}")); err != nil {
		t.Fatal(err)
	}
	l, req := new(leash), post("{}")
	s := e.begin(l, req)
	if !s.whole() {
		t.Fatal("the answer is not said to be here")
	}
	s.err = errPanicked
	if r, err := e.answer(l, req, s); !errors.Is(err, errPanicked) {
		r.Close()
		t.Fatalf("got %v, want %v", err, errPanicked)
	}
	if _, _, err := ask(patience(t), e.upstream, post("{}")); err != nil || e.conns.Load() != 2 {
		t.Errorf("behind it: %v on %d connections, want another", err, e.conns.Load())
	}
}

// TestLegGoesOnWithoutItsRequest has the client of a request leave, or its time end, while it waits for decode itself: it has its outcome
// at once, and the leg goes on.
func TestLegGoesOnWithoutItsRequest(t *testing.T) {
	for _, how := range []string{"its client leaves", "its time ends"} {
		t.Run(how, func(t *testing.T) {
			var hold atomic.Bool
			held, released := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(released) })
			defer release()
			g := start(t, Config{Models: []Model{{Name: "m", Connector: ConnectorPull,
				Prefill: []Engine{{Name: "prefill-0", URL: newCannedEngine(t)}},
				Decode: []Engine{{Name: "decode-0", URL: newCannedDecode(t, func() {
					if hold.CompareAndSwap(true, false) {
						close(held)
						<-released
					}
				})}},
			}}}, Parts{})
			body := `{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 180) + `"}]}`
			eventually(t, "a request is split", func() bool {
				return g.post(pathChat, body).Header.Get("X-Pdrouter-Reason") == "split"
			})
			eventually(t, "the pair is known", func() bool { return g.r.pairs.Stats().Ready == 1 })
			g.settled()
			idle := &g.r.now().fleet.engine("decode-0").up.idle
			var used *engineConn
			eventually(t, "a connection to decode is idle", func() bool { // it is put back after the request is counted
				idle.mu.Lock()
				defer idle.mu.Unlock()
				if len(idle.conns) == 0 {
					return false
				}
				used = idle.conns[len(idle.conns)-1]
				return true
			})
			g.mu.Lock()
			done := len(g.summaries)
			g.mu.Unlock()
			hold.Store(true)
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, rawPost(pathChat, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
			<-held
			want := ClientLeft
			if how == "its client leaves" {
				conn.Close()
			} else {
				want = FailedBefore
				for _, x := range g.r.live.all() {
					x.post(mail{e: dispatch.Event{Kind: dispatch.EvDeadline, Why: reason.Deadline}})
				}
			}
			if sum := g.last(done + 1); sum.Outcome != want {
				t.Errorf("summary %+v, want it %s", sum, want)
			}
			if g.r.running.Load() != 1 {
				t.Error("no leg runs on")
			}
			release()
			g.settled()
			eventually(t, "the leg has read its answer: its connection is idle again", func() bool {
				idle.mu.Lock()
				defer idle.mu.Unlock()
				return slices.Contains(idle.conns, used)
			})
		})
	}
}
