package upstream

import (
	"bufio"
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
	"time"
)

// Config is how a test's client differs from the default.
type Config struct {
	MaxIdle int
	TLS     *tls.Config
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

func newClient(base string, cfg Config) (*Client, error) {
	u, err := New(base)
	if err != nil {
		return nil, err
	}
	u.SetLimits(0, cfg.MaxIdle)
	u.SetTLS(cfg.TLS)
	if cfg.Dial != nil {
		u.SetDial(cfg.Dial)
	}
	return u, nil
}

// fakeEngine is a TCP server whose n-th connection (from 0) is played by serve.
type fakeEngine struct {
	*Client
	conns    atomic.Int32
	requests atomic.Int32
	closed   chan int // numbers of connections whose client closed
}

func newFakeEngine(t *testing.T, cfg Config, serve func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader)) *fakeEngine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{closed: make(chan int, 64)}
	if e.Client, err = newClient("http://"+ln.Addr().String(), cfg); err != nil {
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
func ask(ctx context.Context, u *Client, req *Request) (int, string, error) {
	r, err := u.Do(ctx, req)
	if err != nil {
		return 0, "", err
	}
	defer r.Close()
	b, err := r.ReadAll(nil, 1<<20)
	return r.Status, string(b), err
}

func post(body string) *Request {
	return &Request{Path: "/v1/completions", Header: []Field{{"Content-Type", "application/json"}}, Body: []byte(body)}
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantPhase(t *testing.T, err error, phase Phase, is error) {
	t.Helper()
	var up *Error
	if !errors.As(err, &up) {
		t.Fatalf("got %v, want an *upstream.Error", err)
	}
	if up.Phase != phase || !errors.Is(err, is) {
		t.Errorf("got %v, want phase %v, %v", err, phase, is)
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\nX-One:  a \r\n\r\n{}"

func TestAgainstNetHTTP(t *testing.T) {
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
		cfg := Config{}
		if secure {
			s.StartTLS()
			pool := x509.NewCertPool()
			pool.AddCert(s.Certificate())
			cfg.TLS = &tls.Config{RootCAs: pool}
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		u, err := newClient(s.URL+"/base/", cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(u.Close)
		ctx := patience(t)
		big := strings.Repeat("0123456789", 50_000)
		for _, body := range []string{"", "x", strings.Repeat("y", joinBody), big} {
			req := post(body)
			req.Path, req.Header = "/echo", []Field{{"X-Id", "7"}}
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
		if _, got, err := ask(ctx, u, &Request{Path: "/stream"}); err != nil || got != want.String() {
			t.Errorf("stream: got %q, %v", got, err)
		}
		if status, got, err := ask(ctx, u, &Request{Path: "/none"}); err != nil || status != 204 || got != "" {
			t.Errorf("no content: got %d %q, %v", status, got, err)
		}
	}
}

func TestKeepsConnections(t *testing.T) {
	e := newFakeEngine(t, Config{}, say(okAnswer))
	for range 5 {
		r, err := e.Do(patience(t), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if r.ContentType != "application/json" {
			t.Errorf("content type: got %q", r.ContentType)
		}
		if b, err := r.ReadAll([]byte("x"), 10); err != nil || string(b) != "x{}" {
			t.Errorf("got %q, %v", b, err)
		}
		r.Close()
		r.Close()
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read behind Close: %v", err)
		}
	}
	if got := e.conns.Load(); got != 1 {
		t.Errorf("5 requests used %d connections", got)
	}
}

func TestDropsConnections(t *testing.T) {
	tests := []struct{ name, answer string }{
		{"connection close", "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 2\r\n\r\n{}"},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"},
		{"bytes behind the answer", okAnswer + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newFakeEngine(t, Config{}, say(tt.answer))
			for range 3 {
				if _, got, err := ask(patience(t), e.Client, post("{}")); err != nil || got != "{}" {
					t.Errorf("got %q, %v", got, err)
				}
			}
			if got := e.conns.Load(); got != 3 {
				t.Errorf("3 requests used %d connections", got)
			}
		})
	}
	for name, body := range map[string]string{"late bytes": "{}", "late bytes, a long body": strings.Repeat("x", joinBody+1)} {
		t.Run(name, func(t *testing.T) {
			late := make(chan struct{})
			e := newFakeEngine(t, Config{}, func(e *fakeEngine, n int, c net.Conn, r *bufio.Reader) {
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
				if _, got, err := ask(patience(t), e.Client, post(body)); err != nil || got != "{}" {
					t.Errorf("got %q, %v", got, err)
				}
				if i == 0 {
					late <- struct{}{}
					<-late
					for c := e.idle.conns[0]; c.idleCheck.Idle(); {
						time.Sleep(time.Millisecond) // until the bytes are here
					}
				}
			}
			if got := e.conns.Load(); got != 2 {
				t.Errorf("2 requests used %d connections", got)
			}
		})
	}
	t.Run("not read whole", func(t *testing.T) {
		e := newFakeEngine(t, Config{}, say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
		for range 2 {
			r, err := e.Do(patience(t), post("{}"))
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

func TestRefusesRequests(t *testing.T) {
	e := newFakeEngine(t, Config{}, say(okAnswer))
	for _, req := range []*Request{
		{Path: "v1"}, {Path: "/a b"}, {Path: "/a\r\nX: y"}, {Path: "/é"},
		{Path: "/", Header: []Field{{"X-Request-Id", "a\r\nX: y"}}},
		{Path: "/", Header: []Field{{"X: y\r\nZ", "a"}}},
		{Path: "/", Header: []Field{{"", "a"}}},
	} {
		_, err := e.Do(patience(t), req)
		wantPhase(t, err, PhaseDial, errBadRequest)
	}
	if e.requests.Load() != 0 {
		t.Error("a request was sent")
	}
	for _, base := range []string{"", "fake:80", "ftp://x", "http://", "http://a:b@x", "http://x?y", "http://x#y"} {
		if _, err := newClient(base, Config{}); err == nil {
			t.Errorf("%q is no base URL", base)
		}
	}
}
