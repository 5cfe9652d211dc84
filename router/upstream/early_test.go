package upstream

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
)

// earlyEngine answers each request as soon as it has its head, and closes the connection though more comes.
func earlyEngine(t *testing.T, config *tls.Config, answer string) (url string, asked *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	url = "http://" + ln.Addr().String()
	if config != nil {
		ln, url = tls.NewListener(ln, config), "https://"+ln.Addr().String()
	}
	asked = new(atomic.Int64)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return
				}
				asked.Add(1)
				_, _ = io.WriteString(conn, answer)
			}()
		}
	}()
	return url, asked
}

const early413 = "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n" + `{"error":{"message":"large"}}`

// TestEarlyAnswer has an engine answer and close while a large body is being written, whole or in pieces, with and without
// TLS: the answer is the engine's, it was asked once, and the connection is not used again.
func TestEarlyAnswer(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS() // for its certificate
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	large := bytes.Repeat([]byte("a"), 32<<20)
	for _, secure := range []bool{false, true} {
		for _, pieces := range []bool{false, true} {
			for _, held := range []bool{false, true} {
				name := map[bool]string{false: "plain", true: "TLS"}[secure] + map[bool]string{true: ", pieces"}[pieces] + map[bool]string{true: ", by a Canceler"}[held]
				t.Run(name, func(t *testing.T) {
					var config *tls.Config
					if secure {
						config = &tls.Config{Certificates: s.TLS.Certificates}
					}
					url, asked := earlyEngine(t, config, early413)
					u, err := newClient(url, Config{TLS: &tls.Config{RootCAs: pool}})
					if err != nil {
						t.Fatal(err)
					}
					defer u.Close()
					req := post("")
					if req.Body = large; pieces {
						req.Body = append(req.Gaps.Append([]byte("{"), large), '}')
					}
					ctx := patience(t)
					if held {
						ctx = new(Canceler)
					}
					status, body, err := ask(ctx, u, req)
					if err != nil || status != 413 || body != `{"error":{"message":"large"}}` {
						t.Errorf("got %d %q, %v; want the engine's 413", status, body, err)
					}
					if n := asked.Load(); n != 1 || len(u.idle.conns) != 0 {
						t.Errorf("the engine was asked %d times, %d connections are kept", n, len(u.idle.conns))
					}
				})
			}
		}
	}
}

// TestForgetsDeadline has a stream wait with a deadline and end well: the deadline is not that of the next request on the
// connection.
func TestForgetsDeadline(t *testing.T) {
	e := newFakeEngine(t, Config{}, say(okAnswer))
	l := new(Canceler)
	r, err := e.Do(l, post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAll(nil, 100); err != nil {
		t.Fatal(err)
	}
	l.SetReadDeadline(longAgo)
	r.Close()
	for _, ctx := range []func() (*Response, error){
		func() (*Response, error) { return e.Do(new(Canceler), post("{}")) },
		func() (*Response, error) { return e.Do(patience(t), post("{}")) },
	} {
		r, err := ctx()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := r.ReadAll(nil, 100); err != nil || string(b) != "{}" {
			t.Errorf("got %q, %v", b, err)
		}
		r.Close()
	}
	if n := e.requests.Load(); n != 3 || e.conns.Load() != 1 {
		t.Errorf("%d requests on %d connections; want 3 on 1", n, e.conns.Load())
	}
}

// TestResendsNotLate has a deadline end the wait on a kept connection: the engine may be at work, so it is not asked again.
func TestResendsNotLate(t *testing.T) {
	asked := make(chan struct{}, 8)
	e := newFakeEngine(t, Config{}, func(e *fakeEngine, _ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, ok := e.request(r); !ok {
				return
			}
			if e.requests.Load() > 1 {
				asked <- struct{}{}
				continue
			}
			io.WriteString(c, okAnswer)
		}
	})
	if _, _, err := ask(patience(t), e.Client, post("{}")); err != nil {
		t.Fatal(err)
	}
	kept := e.idle.conns[0].nc
	go func() {
		<-asked
		_ = kept.SetReadDeadline(longAgo)
	}()
	_, _, err := ask(patience(t), e.Client, post("{}"))
	if !errors.Is(err, os.ErrDeadlineExceeded) || e.requests.Load() != 2 {
		t.Errorf("%v, the engine was asked %d times; want a deadline, and 2", err, e.requests.Load())
	}
}
