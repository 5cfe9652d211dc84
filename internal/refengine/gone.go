package refengine

import (
	"net"
	"sync"
	"time"
)

// watchedListener makes connections that can tell whether the client is still there while an answer is computed.
type watchedListener struct{ net.Listener }

// Accept waits for the next connection.
func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: c}, nil
}

// watchedConn reads one byte ahead while its client waits for an answer: a client that leaves ends that read. The byte
// or the error is what the next Read returns first.
type watchedConn struct {
	net.Conn

	mu    sync.Mutex
	ahead *ahead
}

// ahead is one byte read before it was asked for.
type ahead struct {
	done chan struct{} // closed when the read is over
	gone chan struct{} // closed if it ended in an error
	b    [1]byte
	err  error
}

// watch returns a channel that is closed when the client leaves. A client that closes its sending side has left.
func (c *watchedConn) watch() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead != nil {
		return c.ahead.gone
	}
	_ = c.SetReadDeadline(time.Time{}) // that of the request which is being answered; a broken connection shows in the read
	a := &ahead{done: make(chan struct{}), gone: make(chan struct{})}
	c.ahead = a
	go func() {
		if _, a.err = c.Conn.Read(a.b[:]); a.err != nil {
			close(a.gone)
		}
		close(a.done)
	}()
	return a.gone
}

// Read returns what was read ahead, if anything was, and else reads.
func (c *watchedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	a := c.ahead
	c.mu.Unlock()
	if a == nil || len(p) == 0 {
		return c.Conn.Read(p)
	}
	<-a.done
	c.mu.Lock()
	c.ahead = nil
	c.mu.Unlock()
	if a.err != nil {
		return 0, a.err
	}
	p[0] = a.b[0]
	return 1, nil
}
