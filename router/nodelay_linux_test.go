package router_test

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/upstream"
)

// noDelay asks the kernel whether small writes of a connection leave at once.
func noDelay(t *testing.T, c net.Conn) bool {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := 0
	if cerr := raw.Control(func(fd uintptr) { on, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return on != 0
}

// keptConns is a listener that keeps the connections that it accepts.
type keptConns struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *keptConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *keptConns) accepted() []net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.conns)
}

// TestNoDelay asks the kernel of every connection that a stream goes over, the client's and the engine's: an event that is written
// must not wait for the acknowledgement of the one before it.
func TestNoDelay(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoHang}}})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &keptConns{Listener: tcp}
	g := routertest.StartOn(t, ln, s.Config, router.Parts{}, http.DefaultClient, func(*router.Router) {})
	leave(t, g, routertest.StreamBody, func() bool {
		if s.Decode[0].UnderWay() == 0 {
			return false
		}
		clients := ln.accepted()
		for _, c := range clients {
			if !noDelay(t, c) {
				t.Error("the client's connection waits for acknowledgements")
			}
		}
		return len(clients) == 1
	})
	g.WaitIdle()
	up := g.Router.Debug().Engine("decode-0").Upstream()
	resp, err := up.Do(t.Context(), &upstream.Request{Path: "/health"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resp.ReadAll(nil, 1<<10); err != nil {
		t.Fatal(err)
	}
	resp.Close()
	idle := up.Idle()
	if len(idle) == 0 {
		t.Fatal("the engine's connection was not kept")
	}
	engine := idle[len(idle)-1].(*net.TCPConn)
	if !noDelay(t, engine) {
		t.Error("the engine's connection waits for acknowledgements")
	}
	if err := engine.SetNoDelay(false); err != nil || noDelay(t, engine) {
		t.Errorf("the kernel does not tell: %v", err)
	}
}
