package upstream

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// coalescing is a connection whose writes leave together, when it is told.
type coalescing struct {
	net.Conn
	hold bool
	kept []byte
}

func (c *coalescing) Write(p []byte) (int, error) {
	if c.hold {
		c.kept = append(c.kept, p...)
		return len(p), nil
	}
	_, err := c.Conn.Write(append(c.kept, p...))
	c.kept = nil
	return len(p), err
}

// TestFault61KeptTLSConnection keeps a connection of an https engine on which more comes than was asked for, or its end: no byte of it is
// taken for the next answer, and a request that may be sent only once gets a connection of its own.
func TestFault61KeptTLSConnection(t *testing.T) {
	const stolen = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
	for _, row := range []struct {
		name  string
		conns int32                                                   // that two requests use
		after func(c *tls.Conn, raw *coalescing, has <-chan struct{}) // what the first connection does; has: the client has its answer
	}{
		{"nothing", 1, func(c *tls.Conn, _ *coalescing, _ <-chan struct{}) { io.WriteString(c, okAnswer) }},
		{"bytes after the answer", 2, func(c *tls.Conn, _ *coalescing, has <-chan struct{}) {
			io.WriteString(c, okAnswer)
			<-has
			io.WriteString(c, stolen)
		}},
		{"bytes that come with the answer", 2, func(c *tls.Conn, raw *coalescing, _ <-chan struct{}) {
			raw.hold = true
			io.WriteString(c, okAnswer)
			raw.hold = false
			io.WriteString(c, stolen)
		}},
		{"the end", 2, func(c *tls.Conn, _ *coalescing, has <-chan struct{}) {
			io.WriteString(c, okAnswer)
			<-has
			c.Close()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			certified := httptest.NewTLSServer(http.NotFoundHandler())
			defer certified.Close()
			trusted := x509.NewCertPool()
			trusted.AddCert(certified.Certificate())
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			var conns, asked atomic.Int32
			has, done := make(chan struct{}), make(chan struct{})
			go func() {
				for n := 0; ; n++ {
					nc, err := ln.Accept()
					if err != nil {
						return
					}
					conns.Add(1)
					go func() {
						raw := &coalescing{Conn: nc}
						c := tls.Server(raw, &tls.Config{Certificates: certified.TLS.Certificates})
						defer c.Close()
						for r := bufio.NewReader(c); ; {
							req, err := http.ReadRequest(r)
							if err != nil {
								return
							}
							_, _ = io.Copy(io.Discard, req.Body)
							if n > 0 || asked.Add(1) > 1 {
								io.WriteString(c, okAnswer)
								continue
							}
							row.after(c, raw, has)
							close(done)
						}
					}()
				}
			}()
			u, err := newClient("https://"+ln.Addr().String(), Config{TLS: &tls.Config{RootCAs: trusted}})
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			for i := range 2 {
				req := post("{}")
				req.Once = true
				if _, got, err := ask(patience(t), u, req); err != nil || got != "{}" {
					t.Errorf("got %q, %v", got, err)
				}
				if i == 0 {
					close(has)
					<-done
					time.Sleep(50 * time.Millisecond) // what it has sent is here
				}
			}
			if n := conns.Load(); n != row.conns {
				t.Errorf("two requests used %d connections; want %d", n, row.conns)
			}
		})
	}
}
