// Package listener has a listener whose address may change while it serves: connections that have come to the address before are served
// as well. The gateway has one for each of its servers.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/field"
)

// Listener is one of the gateway's listeners: a net.Listener whose address may change.
type Listener struct {
	key       string // of its address in the configuration
	conns     chan net.Conn
	abandoned chan struct{}              // closed some time after Close: nobody takes connections any more
	Log       *slog.Logger               // may be nil
	Secure    atomic.Pointer[tls.Config] // for connections to come; nil: without TLS

	mu      sync.Mutex
	address string       // as the configuration has it
	ln      net.Listener // nil while there is no address
	closed  bool
	workers sync.WaitGroup
}

// New returns a listener without an address. key is the key of its address in the configuration.
func New(key string) *Listener {
	return &Listener{key: key, conns: make(chan net.Conn), abandoned: make(chan struct{})}
}

// Open listens on an address for move to take. It returns nil if there is nothing to move to.
func (l *Listener) Open(address string) (net.Listener, error) {
	l.mu.Lock()
	same := l.address == address
	l.mu.Unlock()
	if same || address == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // Linux attaches no socket filter to an MPTCP listener, and closeListener needs one
	ln, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, field.Errorf(l.key, "cannot be used: %v", err)
	}
	return ln, nil
}

// Move takes what open has returned for the address; "" refuses those that have not come yet.
func (l *Listener) Move(address string, ln net.Listener) {
	l.mu.Lock()
	if l.address == address || l.closed {
		l.mu.Unlock()
		if ln != nil {
			_ = ln.Close()
		}
		return
	}
	old := l.ln
	l.address, l.ln = address, ln
	if ln != nil {
		l.workers.Go(func() { l.take(ln) })
	}
	if old != nil {
		l.workers.Go(func() { l.last(old) })
	}
	l.mu.Unlock()
}

// take hands on the connections of a listener until it ends.
func (l *Listener) take(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err == nil {
			l.pass(conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) || l.closing(ln) { // one that is shut down has errors of its own
			return
		}
		if l.Log != nil && !tooMany(err) {
			l.Log.Warn("a connection could not be accepted", "listener", l.key, "err", err)
		}
		time.Sleep(5 * time.Millisecond) // no descriptor is free, for one
	}
}

// closing reports whether the listener is, or is about to be, closed: last hands on what it still has.
func (l *Listener) closing(ln net.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || l.ln != ln
}

// last closes a listener and hands on the connections that it had not accepted: to their clients they are open.
func (l *Listener) last(ln net.Listener) {
	conns, err := closeListener(ln)
	if err != nil && l.Log != nil {
		l.Log.Warn("listener closed without a filter: clients that were connecting may be reset", "listener", l.key, "err", err)
	}
	for _, conn := range conns {
		l.pass(conn)
	}
}

func (l *Listener) pass(conn net.Conn) {
	if cfg := l.Secure.Load(); cfg != nil {
		conn = tls.Server(conn, cfg)
	}
	select {
	case l.conns <- conn:
	case <-l.abandoned:
		_ = conn.Close()
	}
}

// Accept implements net.Listener. After Close it returns what had connected by then.
func (l *Listener) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if ln := l.ln; ln != nil {
		l.workers.Go(func() { l.last(ln) })
	}
	time.AfterFunc(time.Second, func() { close(l.abandoned) })
	go func() {
		l.workers.Wait()
		close(l.conns)
	}()
	return nil
}

// Addr is where it listens, nil while it does not.
func (l *Listener) Addr() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln == nil {
		return nil
	}
	return l.ln.Addr()
}
