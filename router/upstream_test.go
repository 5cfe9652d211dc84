package router

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeEngine is a TCP server whose n-th connection (from 0) is played by serve.
type fakeEngine struct {
	*upstream
	conns    atomic.Int32
	requests atomic.Int32
	closed   chan int // numbers of connections whose client closed
}

func newFakeEngine(t *testing.T, cfg upstreamConfig, serve func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader)) *fakeEngine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{closed: make(chan int, 64)}
	if e.upstream, err = newUpstream("http://"+ln.Addr().String(), cfg); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n := int(e.conns.Add(1)) - 1
			all.Go(func() {
				serve(e, n, c, bufio.NewReader(c))
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		e.Close()
		ln.Close()
		all.Wait()
	})
	return e
}

// request reads one request; false at the end of the connection.
func (e *fakeEngine) request(r *bufio.Reader) (string, bool) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", false
	}
	b, _ := io.ReadAll(req.Body)
	e.requests.Add(1)
	return string(b), true
}

// say answers every request on a connection with the same bytes.
func say(answer string) func(*fakeEngine, int, net.Conn, *bufio.Reader) {
	return func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
		for {
			if _, ok := e.request(r); !ok {
				e.closed <- n
				return
			}
			io.WriteString(c, answer)
		}
	}
}

// ask makes one request and reads its answer whole.
func ask(ctx context.Context, u *upstream, req *upstreamRequest) (int, string, error) {
	r, err := u.do(ctx, req)
	if err != nil {
		return 0, "", err
	}
	defer r.Close()
	b, err := r.ReadAll(nil, 1<<20)
	return r.Status, string(b), err
}

func post(body string) *upstreamRequest {
	return &upstreamRequest{Path: "/v1/completions", Header: []field{{"Content-Type", "application/json"}}, Body: []byte(body)}
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantPhase(t *testing.T, err error, phase upstreamPhase, is error) {
	t.Helper()
	var up *upstreamError
	if !errors.As(err, &up) {
		t.Fatalf("got %v, want an upstreamError", err)
	}
	if up.Phase != phase || !errors.Is(err, is) {
		t.Errorf("got %v, want phase %v, %v", err, phase, is)
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\nX-One:  a \r\n\r\n{}"

func TestUpstreamAgainstNetHTTP(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/base/echo":
			fmt.Fprintf(w, "%s %s %q %q %d ", r.Method, r.Host, r.Header["X-Id"], r.Header["Accept-Encoding"], r.ContentLength)
			w.Write(b)
		case "/base/stream":
			for i := range 100 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
			}
		case "/base/none":
			w.WriteHeader(http.StatusNoContent)
		}
	})
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(handler)
		cfg := upstreamConfig{}
		if secure {
			s.StartTLS()
			pool := x509.NewCertPool()
			pool.AddCert(s.Certificate())
			cfg.TLS = &tls.Config{RootCAs: pool}
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		u, err := newUpstream(s.URL+"/base/", cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(u.Close)
		ctx := patience(t)
		big := strings.Repeat("0123456789", 50_000)
		for _, body := range []string{"", "x", strings.Repeat("y", joinBody), big} {
			req := post(body)
			req.Path, req.Header = "/echo", []field{{"X-Id", "7"}}
			_, got, err := ask(ctx, u, req)
			want := fmt.Sprintf(`POST %s ["7"] ["identity"] %d %s`, u.address, len(body), body)
			if err != nil || got != want {
				t.Errorf("echo of %d bytes: got %.80q, %v, want %.80q", len(body), got, err, want)
			}
		}
		var want strings.Builder
		for i := range 100 {
			fmt.Fprintf(&want, "data: %d\n\n", i)
		}
		if _, got, err := ask(ctx, u, &upstreamRequest{Path: "/stream"}); err != nil || got != want.String() {
			t.Errorf("stream: got %q, %v", got, err)
		}
		if status, got, err := ask(ctx, u, &upstreamRequest{Path: "/none"}); err != nil || status != 204 || got != "" {
			t.Errorf("no content: got %d %q, %v", status, got, err)
		}
	}
}

func TestUpstreamKeepsConnections(t *testing.T) {
	e := newFakeEngine(t, upstreamConfig{}, say(okAnswer))
	for range 5 {
		r, err := e.do(patience(t), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(r.Header("x-one")), "a"; got != want || r.ContentType != "application/json" || r.Header("x-two") != nil {
			t.Errorf("header: got %q, %q", got, r.ContentType)
		}
		if b, err := r.ReadAll([]byte("x"), 10); err != nil || string(b) != "x{}" {
			t.Errorf("got %q, %v", b, err)
		}
		r.Close()
		r.Close()
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) && err != io.EOF {
			t.Errorf("read behind Close: %v", err)
		}
	}
	if got := e.conns.Load(); got != 1 {
		t.Errorf("5 requests used %d connections", got)
	}
}

func TestUpstreamDropsConnections(t *testing.T) {
	tests := []struct{ name, answer string }{
		{"connection close", "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 2\r\n\r\n{}"},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"},
		{"bytes behind the answer", okAnswer + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newFakeEngine(t, upstreamConfig{}, say(tt.answer))
			for range 3 {
				if _, got, err := ask(patience(t), e.upstream, post("{}")); err != nil || got != "{}" {
					t.Errorf("got %q, %v", got, err)
				}
			}
			if got := e.conns.Load(); got != 3 {
				t.Errorf("3 requests used %d connections", got)
			}
		})
	}
	t.Run("late bytes", func(t *testing.T) {
		late := make(chan struct{})
		e := newFakeEngine(t, upstreamConfig{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
			for {
				if _, ok := e.request(r); !ok {
					return
				}
				io.WriteString(c, okAnswer)
				if n == 0 {
					<-late
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
					late <- struct{}{}
				}
			}
		})
		for i := range 2 {
			if _, got, err := ask(patience(t), e.upstream, post("{}")); err != nil || got != "{}" {
				t.Errorf("got %q, %v", got, err)
			}
			if i == 0 {
				late <- struct{}{}
				<-late
				for c := e.idle.conns[0]; c.quiet.check(); {
					time.Sleep(time.Millisecond) // until the bytes are here
				}
			}
		}
		if got := e.conns.Load(); got != 2 {
			t.Errorf("2 requests used %d connections", got)
		}
	})
	t.Run("not read whole", func(t *testing.T) {
		e := newFakeEngine(t, upstreamConfig{}, say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
		for range 2 {
			r, err := e.do(patience(t), post("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			r.Close()
			<-e.closed
		}
		if got := e.conns.Load(); got != 2 {
			t.Errorf("2 requests used %d connections", got)
		}
	})
}

func TestUpstreamBadHeads(t *testing.T) {
	tests := []struct{ name, answer string }{
		{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"},
		{"length list", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}"},
		{"length sign", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}"},
		{"length overflow", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}"},
		{"empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n{}"},
		{"two codings", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"other coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"no length", "HTTP/1.1 200 OK\r\n\r\n{}"},
		{"HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n\r\n"},
		{"status", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"},
		{"status word", "HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n"},
		{"status 999", "HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n"},
		{"bare line feed", "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n"},
		{"folded", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n x: y\r\n\r\n"},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n"},
		{"NUL", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \x00\r\n\r\n"},
		{"no colon", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX\r\n\r\n"},
		{"switching", "HTTP/1.1 101 Switching Protocols\r\n\r\n"},
		{"interim for ever", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20)},
		{"many fields", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + strings.Repeat("X: y\r\n", 300) + "\r\n"},
		{"huge", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", maxHead) + "\r\n\r\n"},
		{"huge without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 2*maxHead)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newFakeEngine(t, upstreamConfig{}, say(tt.answer))
			_, _, err := ask(patience(t), e.upstream, post("{}"))
			wantPhase(t, err, phaseHead, errBadAnswer)
			if e.requests.Load() != 1 || len(e.idle.conns) != 0 {
				t.Errorf("%d requests, %d idle connections", e.requests.Load(), len(e.idle.conns))
			}
		})
	}
}

func TestUpstreamInterim(t *testing.T) {
	e := newFakeEngine(t, upstreamConfig{}, say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+okAnswer))
	for range 2 {
		if status, got, err := ask(patience(t), e.upstream, post("{}")); status != 200 || got != "{}" || err != nil {
			t.Errorf("got %d %q, %v", status, got, err)
		}
	}
}

var wholeAnswers = []struct{ name, answer, body string }{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world", "hello world"},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n06;a=\"b\"\r\n world\r\n0\r\n\r\n", "hello world"},
	{"trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\nB\r\nhello world\r\n0\r\nX: y\r\nZ: \r\n\r\n", "hello world"},
	{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "ab"},
}

// pipeEngine is an upstream of one connection whose peer reads one request, writes the pieces and closes.
func pipeEngine(t *testing.T, pieces func(yield func([]byte) bool)) *upstream {
	t.Helper()
	u, err := newUpstream("http://fake", upstreamConfig{Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
				return
			}
			for p := range pieces {
				if _, err := far.Write(p); err != nil {
					return
				}
			}
		}()
		return near, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// TestUpstreamSplit writes each answer in pieces of every size, and reads it in pieces of every size.
func TestUpstreamSplit(t *testing.T) {
	for _, tt := range wholeAnswers {
		for size := 1; size <= len(tt.answer); size++ {
			u := pipeEngine(t, func(yield func([]byte) bool) {
				for rest := tt.answer; rest != ""; {
					n := min(size, len(rest))
					if !yield([]byte(rest[:n])) {
						return
					}
					rest = rest[n:]
				}
			})
			r, err := u.do(patience(t), &upstreamRequest{Path: "/"})
			if err != nil {
				t.Fatalf("%s in pieces of %d: %v", tt.name, size, err)
			}
			var got []byte
			buf := make([]byte, size%7+1)
			for err == nil {
				var n int
				n, err = r.Read(buf)
				got = append(got, buf[:n]...)
			}
			if string(got) != tt.body || err != io.EOF {
				t.Errorf("%s in pieces of %d: got %q, %v", tt.name, size, got, err)
			}
			r.Close()
			if len(u.idle.conns) != 1 {
				t.Errorf("%s in pieces of %d: the connection was not kept", tt.name, size)
			}
		}
	}
}

// TestUpstreamCut ends the connection behind every byte of each answer: only the last one is an answer's end.
func TestUpstreamCut(t *testing.T) {
	for _, tt := range wholeAnswers {
		for n := range len(tt.answer) {
			u := pipeEngine(t, func(yield func([]byte) bool) { yield([]byte(tt.answer[:n])) })
			_, got, err := ask(patience(t), u, &upstreamRequest{Path: "/"})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s cut at %d: got %q, %v", tt.name, n, got, err)
			}
			if len(u.idle.conns) != 0 {
				t.Errorf("%s cut at %d: the connection was kept", tt.name, n)
			}
		}
	}
}

func TestUpstreamBadChunks(t *testing.T) {
	for _, body := range []string{"x\r\n", "\r\n", "-1\r\n", "+2\r\nab\r\n", "0x2\r\nab\r\n", "2 2\r\n", "2\nab\r\n0\r\n\r\n", "2\r\nabc\r\n0\r\n\r\n",
		"2\r\nab\n0\r\n\r\n", "fffffffffffffffff\r\n", "2;" + strings.Repeat("x", 300) + "\r\n", "2;\x01\r\nab\r\n0\r\n\r\n",
		"0\r\nbad trailer\r\n\r\n", "0\r\nX : y\r\n\r\n", "0\r\n" + strings.Repeat("X: yyyyyyyyyyyyyyyyyyyyyyyyy\r\n", 4000) + "\r\n", strings.Repeat("1", 9000)} {
		u := pipeEngine(t, func(yield func([]byte) bool) {
			yield([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body))
		})
		_, got, err := ask(patience(t), u, &upstreamRequest{Path: "/"})
		if !errors.Is(err, errBadAnswer) {
			t.Errorf("%.40q: got %q, %v", body, got, err)
		}
		if len(u.idle.conns) != 0 {
			t.Errorf("%.40q: the connection was kept", body)
		}
	}
}

func TestUpstreamAnswerSize(t *testing.T) {
	for _, tt := range wholeAnswers[:2] {
		e := newFakeEngine(t, upstreamConfig{}, say(tt.answer))
		for max, want := range map[int]error{10: errAnswerSize, 11: nil} {
			r, err := e.do(patience(t), post("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = r.ReadAll(nil, max); !errors.Is(err, want) {
				t.Errorf("%s, at most %d bytes: got %v, want %v", tt.name, max, err, want)
			}
			r.Close()
		}
	}
}

// hidden is a connection that cannot be looked at, so that its end is found by using it.
type hidden struct{ net.Conn }

// TestUpstreamRetry: engine plays a connection by its number and the number of the request on it.
func TestUpstreamRetry(t *testing.T) {
	tests := []struct {
		name            string
		closeAt         func(conn, request int) bool // read the request, then close without an answer
		partial         bool                         // but send one byte of an answer first
		requests, conns int32
		phase           upstreamPhase
		ok              bool
	}{
		{"new connection", func(c, _ int) bool { return c == 0 }, false, 1, 1, phaseSend, false},
		{"kept connection", func(c, r int) bool { return c == 0 && r == 1 }, false, 3, 2, 0, true},
		{"kept, then new", func(c, r int) bool { return r == 1 || c > 0 }, false, 3, 2, phaseSend, false},
		{"kept, after a byte", func(_, r int) bool { return r == 1 }, true, 2, 1, phaseHead, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := upstreamConfig{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
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
				if _, _, err = ask(patience(t), e.upstream, post("{}")); err != nil {
					break
				}
			}
			if tt.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
			if err != nil {
				var up *upstreamError
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

func TestUpstreamCancel(t *testing.T) {
	why := errors.New("the client left")
	t.Run("before", func(t *testing.T) {
		e := newFakeEngine(t, upstreamConfig{}, say(okAnswer))
		ctx, cancel := context.WithCancelCause(patience(t))
		cancel(why)
		_, err := e.do(ctx, post("{}"))
		wantPhase(t, err, phaseDial, why)
		if e.conns.Load() != 0 {
			t.Error("a connection was made")
		}
	})
	t.Run("while dialling", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		u, err := newUpstream("http://fake", upstreamConfig{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel(why)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.do(ctx, post("{}"))
		wantPhase(t, err, phaseDial, why)
	})
	t.Run("while waiting for the head", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		e := newFakeEngine(t, upstreamConfig{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
			e.request(r)
			cancel(why)
			r.ReadByte()
			e.closed <- n
		})
		_, err := e.do(ctx, post("{}"))
		wantPhase(t, err, phaseSend, why)
		<-e.closed // the engine sees its client go
	})
	t.Run("while writing", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		stay := make(chan struct{})
		e := newFakeEngine(t, upstreamConfig{}, func(_ *fakeEngine, _ int, _ net.Conn, r *bufio.Reader) {
			r.ReadByte()
			cancel(why)
			<-stay
		})
		defer close(stay)
		_, err := e.do(ctx, post(strings.Repeat("x", 64<<20)))
		wantPhase(t, err, phaseSend, why)
	})
	t.Run("while reading the body", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(patience(t))
		e := newFakeEngine(t, upstreamConfig{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
			e.request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
			r.ReadByte()
			e.closed <- n
		})
		r, err := e.do(ctx, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 8)
		if n, err := r.Read(buf); n != 2 || err != nil {
			t.Fatalf("got %d bytes, %v", n, err)
		}
		time.AfterFunc(time.Millisecond, func() { cancel(why) })
		_, err = r.Read(buf)
		wantPhase(t, err, phaseBody, why)
		r.Close()
		<-e.closed
	})
	t.Run("behind the whole answer", func(t *testing.T) {
		e := newFakeEngine(t, upstreamConfig{}, say(okAnswer))
		ctx, cancel := context.WithCancelCause(patience(t))
		r, err := e.do(ctx, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAll(nil, 10); err != nil {
			t.Fatal(err)
		}
		cancel(why)
		r.Close()
		if _, got, err := ask(patience(t), e.upstream, post("{}")); got != "{}" || err != nil {
			t.Errorf("the request behind it: got %q, %v", got, err)
		}
	})
}

func TestUpstreamRefusesRequests(t *testing.T) {
	e := newFakeEngine(t, upstreamConfig{}, say(okAnswer))
	for _, req := range []*upstreamRequest{
		{Path: "v1"}, {Path: "/a b"}, {Path: "/a\r\nX: y"}, {Path: "/é"},
		{Path: "/", Header: []field{{"X-Request-Id", "a\r\nX: y"}}},
		{Path: "/", Header: []field{{"X: y\r\nZ", "a"}}},
		{Path: "/", Header: []field{{"", "a"}}},
	} {
		_, err := e.do(patience(t), req)
		wantPhase(t, err, phaseDial, errBadRequestPart)
	}
	if e.requests.Load() != 0 {
		t.Error("a request was sent")
	}
	for _, base := range []string{"", "fake:80", "ftp://x", "http://", "http://a:b@x", "http://x?y", "http://x#y"} {
		if _, err := newUpstream(base, upstreamConfig{}); err == nil {
			t.Errorf("%q is no base URL", base)
		}
	}
}

func TestUpstreamIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, closed atomic.Int32
		u, err := newUpstream("http://fake", upstreamConfig{Dial: func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			near, far := net.Pipe()
			go func() {
				r := bufio.NewReader(far)
				for {
					if _, err := http.ReadRequest(r); err != nil {
						closed.Add(1)
						return
					}
					io.WriteString(far, okAnswer)
				}
			}()
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, wait := range []time.Duration{0, 3 * time.Second, 3 * time.Second, 3999 * time.Millisecond, 4 * time.Second, time.Hour} {
			time.Sleep(wait)
			synctest.Wait()
			if _, got, err := ask(t.Context(), u, &upstreamRequest{Path: "/"}); err != nil || got != "{}" {
				t.Fatalf("request %d: %q, %v", i, got, err)
			}
		}
		if got := dials.Load(); got != 3 {
			t.Errorf("%d connections were made, want 3", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := closed.Load(); got != 3 || len(u.idle.conns) != 0 {
			t.Errorf("%d connections were closed, %d are idle", got, len(u.idle.conns))
		}
		u.Close()
	})
}

func TestUpstreamConcurrent(t *testing.T) {
	e := newFakeEngine(t, upstreamConfig{MaxIdle: 2}, func(e *fakeEngine, _ int, c net.Conn, r *bufio.Reader) {
		for {
			b, ok := e.request(r)
			if !ok {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		}
	})
	ctx := patience(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				want := strings.Repeat(fmt.Sprint(g), i+1)
				mine, cancel := context.WithCancel(ctx)
				if i%10 == g {
					time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
				}
				if _, got, err := ask(mine, e.upstream, post(want)); err == nil && got != want || err != nil && mine.Err() == nil {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if n := len(e.idle.conns); n > 2 {
		t.Errorf("%d idle connections", n)
	}
}

// FuzzUpstreamAnswer compares what is accepted with net/http: any difference would be a way to poison a connection.
func FuzzUpstreamAnswer(f *testing.F) {
	for _, a := range wholeAnswers {
		f.Add([]byte(a.answer))
	}
	f.Add([]byte(okAnswer))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &engineConn{nc: &replay{Reader: bytes.NewReader(in)}, buf: make([]byte, 64)}
		h, err := c.readHead()
		if err != nil {
			return
		}
		u := &upstream{}
		u.idle.max, u.idle.after = 1, time.Hour
		r := &upstreamResponse{up: u, c: c, ctx: context.Background(), stop: func() bool { return true }}
		r.begin(h)
		got, err := r.ReadAll(nil, 1<<20)
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(in))
		var want *http.Response
		for {
			if want, err = http.ReadResponse(br, nil); err != nil {
				t.Fatalf("accepted a head that net/http does not: %v", err)
			}
			if want.StatusCode >= 200 {
				break
			}
		}
		body, err := io.ReadAll(want.Body)
		if err != nil || want.StatusCode != r.Status || !bytes.Equal(body, got) {
			t.Errorf("got %d %q, net/http says %d %q %v", r.Status, got, want.StatusCode, body, err)
		}
		u.Close()
	})
}

// replay is a connection that only reads.
type replay struct {
	net.Conn
	*bytes.Reader
}

func (r *replay) Read(p []byte) (int, error)  { return r.Reader.Read(p) }
func (r *replay) Write(p []byte) (int, error) { return len(p), nil }
func (r *replay) Close() error                { return nil }

func BenchmarkUpstream(b *testing.B) {
	near := make(chan net.Conn, 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		near <- c
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			io.WriteString(c, okAnswer)
		}
	}()
	u, err := newUpstream("http://"+ln.Addr().String(), upstreamConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req := post(strings.Repeat("x", 1024))
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		r, err := u.do(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		if buf, err = r.ReadAll(buf[:0], 1<<20); err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
	(<-near).Close()
}
