package router

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
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

// TestNoDelay asks the kernel of every connection that a stream goes over, the client's and the engine's: an event that is written
// must not wait for the acknowledgement of the one before it.
func TestNoDelay(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	s.setFaults(map[string][]fault{"decode-0": {{Do: doHang}}})
	g := start(t, s.cfg, Parts{})
	leave(t, g, streamBody, func() bool {
		if s.d[0].underWay() == 0 {
			return false
		}
		g.r.gone.mu.Lock()
		defer g.r.gone.mu.Unlock()
		for c := range g.r.gone.known { // the clients' connections with a request
			if !noDelay(t, c) {
				t.Error("the client's connection waits for acknowledgements")
			}
		}
		return len(g.r.gone.known) == 1
	})
	g.settled()
	c, err := g.r.now().fleet.engine("decode-0").up.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.nc.Close()
	if !noDelay(t, c.nc) {
		t.Error("the engine's connection waits for acknowledgements")
	}
	tcp := c.nc.(*net.TCPConn)
	if err := tcp.SetNoDelay(false); err != nil || noDelay(t, tcp) {
		t.Errorf("the kernel does not tell: %v", err)
	}
}
