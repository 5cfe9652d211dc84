package router_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// startTLS serves the pool to clients that speak TLS.
func startTLS(t *testing.T, s *routertest.Pool) *routertest.Gateway {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	srv.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return routertest.StartOn(t, tls.NewListener(ln, srv.TLS), s.Config, router.Parts{}, srv.Client(), func(*router.Router) {})
}

// dialTLS connects, and is there when the handshake is done.
func dialTLS(t *testing.T, address string) (*tls.Conn, error) {
	t.Helper()
	d := &net.Dialer{Timeout: routertest.Patience}
	conn, err := tls.DialWithDialer(d, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// TestFault58LeavesByTLS has a client that speaks TLS leave while its request waits for the engine, and in the middle of its stream. One
// says goodbye as TLS wants it, one does not.
func TestFault58LeavesByTLS(t *testing.T) {
	for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
		for name, leave := range map[string]func(*tls.Conn){
			"with close_notify":    func(c *tls.Conn) { _ = c.Close() },
			"without close_notify": func(c *tls.Conn) { _ = c.NetConn().Close() },
		} {
			t.Run(fmt.Sprintf("%s %.40s", name, body), func(t *testing.T) {
				s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
				s.Decode[0].Faults = []routertest.Fault{{Leg: "alone", Do: routertest.DoHang}}
				g := startTLS(t, s)
				conn, err := dialTLS(t, g.Addr)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json",
					fmt.Sprintf("Content-Length: %d", len(body))))
				routertest.Eventually(t, "the engine has the request", func() bool { return s.Cluster.Count("", "alone") == 1 })
				leave(conn)
				if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
				}
				routertest.Eventually(t, "the engine sees the end", func() bool { return s.Decode[0].UnderWay() == 0 })
			})
		}
	}
}

// TestFault08SlowTLSHandshake has clients that send a handshake byte by byte. Each holds a place of limits.concurrent until timeouts.read.
// The connection beyond the limit is closed without a handshake: the goroutine that accepts connections does not wait for one.
func TestFault08SlowTLSHandshake(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Read = 2 * time.Second
	s.Config.Limits.Concurrent = 2
	g := startTLS(t, s)
	g.Client.Timeout = routertest.Patience / 4
	began := time.Now()
	ended := make(chan error)
	for range s.Config.Limits.Concurrent + 1 {
		conn := dial(t, g.Addr)
		_, _ = io.WriteString(conn, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") // of a ClientHello of 512 bytes
		go func() {
			for {
				_, _ = conn.Write([]byte{0})
				_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				_, err := conn.Read(make([]byte, 1))
				switch {
				case time.Since(began) > routertest.Patience/2:
					ended <- nil
					return
				case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
					ended <- err
					return
				}
			}
		}()
	}
	if err := <-ended; err == nil || time.Since(began) > s.Config.Timeouts.Read*3/4 {
		t.Error("the connection beyond limits.concurrent was not closed at once")
	}
	for range s.Config.Limits.Concurrent {
		if err := <-ended; err == nil {
			t.Error("a handshake that does not end is still waited for")
		}
	}
	if took := time.Since(began); took < s.Config.Timeouts.Read*3/4 {
		t.Errorf("all are closed after %v, before timeouts.read", took)
	}
	routertest.Eventually(t, "another client is served", func() bool {
		resp, err := g.Client.Get("https://" + g.Addr + "/v1/models")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == 200
	})
}
