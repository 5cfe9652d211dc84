package router

import (
	"net"
	"sync"
	"sync/atomic"
)

// arrivals is a listener that knows which of its connections have not brought a byte yet. The HTTP server takes those
// for busy ones, so that one that a client opened for later would hold up a shutdown until its read timeout.
type arrivals struct {
	net.Listener

	mu     sync.Mutex
	closed bool
	silent map[*arrival]struct{}
}

// arrival is a client's connection.
type arrival struct {
	*net.TCPConn
	from  *arrivals
	spoke atomic.Bool
}

func newArrivals(ln net.Listener) *arrivals {
	return &arrivals{Listener: ln, silent: map[*arrival]struct{}{}}
}

// Accept waits for the next connection. What is no TCP connection is handed on as it is.
func (l *arrivals) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	a := &arrival{TCPConn: tcp, from: l}
	l.mu.Lock()
	late := l.closed
	if !late {
		l.silent[a] = struct{}{}
	}
	l.mu.Unlock()
	if late {
		_ = a.TCPConn.Close() // the server finds it closed
	}
	return a, nil
}

// closeSilent closes the connections that have brought nothing, and those that are still to come.
func (l *arrivals) closeSilent() {
	l.mu.Lock()
	silent := l.silent
	l.silent, l.closed = nil, true
	l.mu.Unlock()
	for a := range silent {
		_ = a.TCPConn.Close()
	}
}

func (l *arrivals) remove(a *arrival) {
	if !a.spoke.CompareAndSwap(false, true) {
		return
	}
	l.mu.Lock()
	delete(l.silent, a)
	l.mu.Unlock()
}

// Read notes the first byte.
func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.TCPConn.Read(p)
	if n > 0 && !a.spoke.Load() {
		a.from.remove(a)
	}
	return n, err
}

// Close closes the connection.
func (a *arrival) Close() error {
	a.from.remove(a)
	return a.TCPConn.Close()
}
