package main

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

// door is one of the gateway's listeners. Its address may change while it is served: whatever has connected to the one
// before is served as well. It is a net.Listener to whoever serves it.
type door struct {
	key       string // of its address in the configuration
	conns     chan net.Conn
	abandoned chan struct{}              // closed some time after Close: nobody takes connections any more
	log       *slog.Logger               // may be nil
	secure    atomic.Pointer[tls.Config] // for connections to come; nil: without TLS

	mu      sync.Mutex
	address string       // as the configuration has it
	ln      net.Listener // nil while there is no address
	closed  bool
	workers sync.WaitGroup
}

func newDoor(key string) *door {
	return &door{key: key, conns: make(chan net.Conn), abandoned: make(chan struct{})}
}

// open listens on an address for move to take. It returns nil if there is nothing to move to.
func (d *door) open(address string) (net.Listener, error) {
	d.mu.Lock()
	same := d.address == address
	d.mu.Unlock()
	if same || address == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // Linux attaches no socket filter to an MPTCP listener, and closeListener needs one
	ln, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, field.Errorf(d.key, "cannot be used: %v", err)
	}
	return ln, nil
}

// move takes what open has returned for the address; "" closes the door for those who have not come yet.
func (d *door) move(address string, ln net.Listener) {
	d.mu.Lock()
	if d.address == address || d.closed {
		d.mu.Unlock()
		if ln != nil {
			_ = ln.Close()
		}
		return
	}
	old := d.ln
	d.address, d.ln = address, ln
	if ln != nil {
		d.workers.Go(func() { d.take(ln) })
	}
	if old != nil {
		d.workers.Go(func() { d.last(old) })
	}
	d.mu.Unlock()
}

// take hands on the connections of a listener until it ends.
func (d *door) take(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err == nil {
			d.pass(conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) || d.closing(ln) { // one that is shut down has errors of its own
			return
		}
		if d.log != nil && !tooMany(err) {
			d.log.Warn("a connection could not be accepted", "listener", d.key, "err", err)
		}
		time.Sleep(5 * time.Millisecond) // no descriptor is free, for one
	}
}

// closing reports whether the listener is, or is about to be, closed: last hands on what it still has.
func (d *door) closing(ln net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed || d.ln != ln
}

// last closes a listener and hands on the connections that it had not accepted: to their clients they are open.
func (d *door) last(ln net.Listener) {
	conns, err := closeListener(ln)
	if err != nil && d.log != nil {
		d.log.Warn("listener closed without a filter: clients that were connecting may be reset", "listener", d.key, "err", err)
	}
	for _, conn := range conns {
		d.pass(conn)
	}
}

func (d *door) pass(conn net.Conn) {
	if cfg := d.secure.Load(); cfg != nil {
		conn = tls.Server(conn, cfg)
	}
	select {
	case d.conns <- conn:
	case <-d.abandoned:
		_ = conn.Close()
	}
}

// Accept implements net.Listener. After Close it returns what had connected by then.
func (d *door) Accept() (net.Conn, error) {
	if conn, ok := <-d.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if ln := d.ln; ln != nil {
		d.workers.Go(func() { d.last(ln) })
	}
	time.AfterFunc(time.Second, func() { close(d.abandoned) })
	go func() {
		d.workers.Wait()
		close(d.conns)
	}()
	return nil
}

// Addr is where it listens, nil while it does not.
func (d *door) Addr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ln == nil {
		return nil
	}
	return d.ln.Addr()
}
