package control

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/kvplane/transfer"
)

// pipes is a listener whose connections are in memory, so that their deadlines are in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { close(p.closed); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestSlowRequestsAreCut: a request that comes slowly, whether or not it is authorised, holds its connection for 10 s at most, an idle one a minute. A
// stream of events stays.
func TestSlowRequestsAreCut(t *testing.T) {
	for name, tc := range map[string]struct {
		sent  string
		after time.Duration // the connection is closed then; 0: it stays
	}{
		"body":   {"POST /kvplane/v1/transfers/%s/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx", 15 * time.Second},
		"head":   {"POST /kvplane/v1/transfers/%s/cancel HTTP/1.1\r\nHost: x\r\n", 15 * time.Second},
		"idle":   {"POST /kvplane/v1/transfers/%s/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 70 * time.Second},
		"events": {"GET /kvplane/v1/events HTTP/1.1\r\nHost: x\r\nX-Transfer: %s\r\n\r\n", 0},
	} {
		for _, allowed := range []bool{true, false} {
			if name == "events" && !allowed {
				continue
			}
			t.Run(fmt.Sprint(name, " authorised ", allowed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					authorize := func(*http.Request) error {
						if allowed {
							return nil
						}
						return fmt.Errorf("no token")
					}
					l := pipes{make(chan net.Conn), make(chan struct{})}
					s := NewServer(t.Context(), Handler(NewBroadcaster(), func(transfer.ID, string) {}, authorize, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
					go func() { _ = s.Serve(l) }()
					client, server := net.Pipe()
					l.conns <- server
					ended := make(chan time.Duration, 1)
					began := time.Now()
					go func() {
						r := bufio.NewReader(client)
						for {
							if _, err := r.ReadByte(); err != nil {
								ended <- time.Since(began)
								return
							}
						}
					}()
					_, _ = fmt.Fprintf(client, tc.sent, strings.Repeat("0", 31)+"1")
					time.Sleep(5 * time.Minute)
					select {
					case after := <-ended:
						if tc.after == 0 || after > tc.after {
							t.Errorf("closed after %v; want %v (0: never)", after, tc.after)
						}
					default:
						if tc.after > 0 {
							t.Errorf("open after 5 minutes; want it closed within %v", tc.after)
						}
					}
					_ = s.Close()
					_ = client.Close()
				})
			})
		}
	}
}
