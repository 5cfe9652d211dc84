package router

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// arrivals accepts the clients' connections and gives them to whichever edge has its turn. It knows which of them have not
// brought a byte yet: the HTTP server takes those for busy ones, so that one that a client opened for later would hold up
// a shutdown until its read timeout.
type arrivals struct {
	ln    net.Listener
	conns chan net.Conn // closed when no more are to come

	mu     sync.Mutex
	silent map[*arrival]struct{}
}

// arrival is a client's connection.
type arrival struct {
	*net.TCPConn
	from  *arrivals
	since time.Time
	spoke atomic.Bool
}

func newArrivals(ln net.Listener) *arrivals {
	return &arrivals{ln: ln, conns: make(chan net.Conn), silent: map[*arrival]struct{}{}}
}

// run accepts until the listener ends, and returns why it did. What is no TCP connection is handed on as it is.
func (l *arrivals) run() error {
	defer close(l.conns)
	for {
		conn, err := l.ln.Accept()
		if err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				continue
			}
			return err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			a := &arrival{TCPConn: tcp, from: l, since: time.Now()}
			l.mu.Lock()
			l.silent[a] = struct{}{}
			l.mu.Unlock()
			conn = a
		}
		l.conns <- conn
	}
}

// closeSilent closes the connections that have brought nothing since before, and reports whether there are others.
func (l *arrivals) closeSilent(before time.Time) bool {
	var old []*arrival
	l.mu.Lock()
	for a := range l.silent {
		if a.since.Before(before) {
			old = append(old, a)
		}
	}
	others := len(l.silent) > len(old)
	l.mu.Unlock()
	for _, a := range old {
		_ = a.Close()
	}
	return others
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

// turn is what one edge takes for its listener: the connections that arrive until its turn is over. Closing it changes
// nothing, as others listen there too.
type turn struct {
	*arrivals
	over chan struct{}
}

// Accept waits for the next connection. io.EOF is the end of the turn.
func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.over: // not one more, though some may be waiting
		return nil, io.EOF
	default:
	}
	select {
	case conn, ok := <-t.conns:
		if !ok {
			return nil, io.EOF
		}
		return conn, nil
	case <-t.over:
		return nil, io.EOF
	}
}

// Addr is where clients connect.
func (t *turn) Addr() net.Addr { return t.ln.Addr() }

// Close implements net.Listener.
func (t *turn) Close() error { return nil }
