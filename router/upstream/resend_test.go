package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// hidden is a connection that cannot be looked at, so that its end is found by using it.
type hidden struct{ net.Conn }

// TestRetry: engine plays a connection by its number and the number of the request on it.
func TestRetry(t *testing.T) {
	tests := []struct {
		name            string
		closeAt         func(conn, request int) bool // read the request, then close without an answer
		partial         bool                         // but send one byte of an answer first
		requests, conns int32
		phase           Phase
		ok              bool
	}{
		{"new connection", func(c, _ int) bool { return c == 0 }, false, 1, 1, PhaseSend, false},
		{"kept connection", func(c, r int) bool { return c == 0 && r == 1 }, false, 3, 2, 0, true},
		{"kept, then new", func(c, r int) bool { return r == 1 || c > 0 }, false, 3, 2, PhaseSend, false},
		{"kept, after a byte", func(_, r int) bool { return r == 1 }, true, 2, 1, PhaseHead, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				return hidden{c}, err
			}}
			e := newFakeEngine(t, cfg, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
				for i := 0; ; i++ {
					if _, ok := e.request(r); !ok {
						return
					}
					if tt.closeAt(n, i) {
						if tt.partial {
							io.WriteString(c, "H")
						}
						return
					}
					io.WriteString(c, okAnswer)
				}
			})
			var err error
			for range 2 {
				if _, _, err = ask(patience(t), e.Client, post("{}")); err != nil {
					break
				}
			}
			if tt.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
			if err != nil {
				var up *Error
				if !errors.As(err, &up) || up.Phase != tt.phase {
					t.Errorf("got %v, want phase %v", err, tt.phase)
				}
			}
			if e.requests.Load() != tt.requests || e.conns.Load() != tt.conns {
				t.Errorf("%d requests on %d connections, want %d on %d", e.requests.Load(), e.conns.Load(), tt.requests, tt.conns)
			}
		})
	}
}

// TestResend says what a request is that may have arrived twice.
func TestResend(t *testing.T) {
	for _, tt := range []struct {
		name     string
		once     bool
		late     bool // the kept connection breaks long after the request
		noDial   bool // and no second one is made
		requests int32
		ok       bool
	}{
		{"again", false, false, false, 3, true},
		{"the port is closed", false, false, true, 2, false},
		{"what may be sent once", true, false, false, 2, false},
		{"at work", false, true, false, 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dials := 0
			cfg := Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if dials++; dials > 1 && tt.noDial {
					return nil, errors.New("refused")
				}
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				return hidden{c}, err
			}}
			e := newFakeEngine(t, cfg, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
				for i := 0; ; i++ {
					if _, ok := e.request(r); !ok {
						return
					}
					if n == 0 && i == 1 {
						if tt.late {
							time.Sleep(resendWithin + 100*time.Millisecond)
						}
						return
					}
					io.WriteString(c, okAnswer)
				}
			})
			if _, _, err := ask(patience(t), e.Client, post("{}")); err != nil {
				t.Fatal(err)
			}
			req := post("{}")
			req.Once = tt.once
			r, err := e.Do(patience(t), req)
			if tt.ok {
				if err != nil || !r.Resent {
					t.Fatalf("%+v, %v; want an answer that says Resent", r, err)
				}
				r.Close()
			} else {
				if err == nil {
					r.Close()
				}
				var up *Error
				if !errors.As(err, &up) || up.Phase != PhaseSend {
					t.Errorf("got %v; want phase send", err)
				}
			}
			if got := e.requests.Load(); got != tt.requests {
				t.Errorf("%d requests; want %d", got, tt.requests)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	why := errors.New("the client left")
	t.Run("before", func(t *testing.T) {
		e := newFakeEngine(t, Config{}, say(okAnswer))
		ctx, cancel := context.WithCancelCause(patience(t))
		cancel(why)
		_, err := e.Do(ctx, post("{}"))
		wantPhase(t, err, PhaseDial, why)
		if e.conns.Load() != 0 {
			t.Error("a connection was made")
		}
	})
	t.Run("while dialling", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		u, err := newClient("http://fake", Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel(why)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.Do(ctx, post("{}"))
		wantPhase(t, err, PhaseDial, why)
	})
	t.Run("while waiting for the head", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		e := newFakeEngine(t, Config{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
			e.request(r)
			cancel(why)
			r.ReadByte()
			e.closed <- n
		})
		_, err := e.Do(ctx, post("{}"))
		wantPhase(t, err, PhaseSend, why)
		<-e.closed // the engine sees its client go
	})
	t.Run("while writing", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		stay := make(chan struct{})
		e := newFakeEngine(t, Config{}, func(_ *fakeEngine, _ int, _ net.Conn, r *bufio.Reader) {
			r.ReadByte()
			cancel(why)
			<-stay
		})
		defer close(stay)
		_, err := e.Do(ctx, post(strings.Repeat("x", 64<<20)))
		wantPhase(t, err, PhaseSend, why)
	})
	t.Run("while reading the body", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		e := newFakeEngine(t, Config{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
			e.request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
			r.ReadByte()
			e.closed <- n
		})
		r, err := e.Do(ctx, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 8)
		if n, err := r.Read(buf); n != 2 || err != nil {
			t.Fatalf("got %d bytes, %v", n, err)
		}
		time.AfterFunc(time.Millisecond, func() { cancel(why) })
		_, err = r.Read(buf)
		wantPhase(t, err, PhaseBody, why)
		r.Close()
		<-e.closed
	})
	t.Run("behind the whole answer", func(t *testing.T) {
		e := newFakeEngine(t, Config{}, say(okAnswer))
		ctx, cancel := context.WithCancelCause(patience(t))
		r, err := e.Do(ctx, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAll(nil, 10); err != nil {
			t.Fatal(err)
		}
		cancel(why)
		r.Close()
		if _, got, err := ask(patience(t), e.Client, post("{}")); got != "{}" || err != nil {
			t.Errorf("the request behind it: got %q, %v", got, err)
		}
	})
}
