package routertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Network is a network in memory: a goroutine that waits for it waits on a condition, so that the clock of a synctest bubble goes on. It keeps
// account of what went over it and when.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*Listener
	sent      []Sent
}

// Sent is one write, or the end of a connection.
type Sent struct {
	At      time.Time
	Address string // of the listener
	Up      bool   // towards it
	closed  bool
	Request string // the first word, of what begins a request
}

// NewNetwork makes a network without listeners.
func NewNetwork() *Network { return &Network{listeners: map[string]*Listener{}} }

func (n *Network) note(s Sent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.At = time.Now()
	n.sent = append(n.sent, s)
}

// Log is what went over the network so far.
func (n *Network) Log() []Sent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Sent(nil), n.sent...)
}

type Listener struct {
	net     *Network
	address memAddr
	conns   chan *memConn
	closed  chan struct{}
	once    sync.Once
}

type memAddr string

func (memAddr) Network() string  { return "tcp" }
func (a memAddr) String() string { return string(a) }

// Listen returns a listener with an address of its own.
func (n *Network) Listen() *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &Listener{net: n, address: memAddr(fmt.Sprintf("10.0.0.%d:8000", len(n.listeners)+1)), conns: make(chan *memConn), closed: make(chan struct{})}
	n.listeners[l.address.String()] = l
	return l
}

func (l *Listener) Addr() net.Addr { return l.address }

func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Dial connects, or is refused where nobody listens.
func (n *Network) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: memAddr(address), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	up, down := newMemFlow(), newMemFlow()
	client := &memConn{net: n, address: l.address, up: true, in: down, out: up}
	server := &memConn{net: n, address: l.address, in: up, out: down}
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		n.note(Sent{Address: address, closed: true})
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ConnBuffer is how many bytes lie between two ends.
const ConnBuffer = 64 << 10

// memFlow is one direction of a connection.
type memFlow struct {
	mu       sync.Mutex
	moved    *sync.Cond
	bytes    []byte
	eof      bool   // the writer has closed
	broken   error  // what comes in place of more bytes
	gone     bool   // the reader has closed
	onGone   func() // called at eof; may be nil
	deadline [2]memDeadline
}

// memDeadline is when a reader (0) or a writer (1) stops waiting.
type memDeadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *memDeadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newMemFlow() *memFlow {
	f := new(memFlow)
	f.moved = sync.NewCond(&f.mu)
	return f
}

func (f *memFlow) set(side int, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &f.deadline[side]
	if d.at = at; d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if wait := time.Until(at); !at.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, f.moved.Broadcast)
	}
	f.moved.Broadcast()
}

func (f *memFlow) end(broken error) {
	f.mu.Lock()
	if f.eof = true; broken != nil && f.broken == nil {
		f.broken, f.bytes = broken, nil
	}
	onGone := f.onGone
	f.onGone = nil
	f.moved.Broadcast()
	f.mu.Unlock()
	if onGone != nil {
		onGone()
	}
}

// memConn is one end of a connection. It does as a TCP connection does: an end that is closed reads no more, and whoever writes to it
// is told so.
type memConn struct {
	net     *Network
	address memAddr
	up      bool
	in, out *memFlow
	reset   bool
	once    sync.Once
}

func (c *memConn) Read(p []byte) (int, error) {
	f := c.in
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.gone:
			return 0, net.ErrClosed
		case f.deadline[0].over():
			return 0, os.ErrDeadlineExceeded
		case len(f.bytes) > 0:
			n := copy(p, f.bytes)
			f.bytes = f.bytes[n:]
			f.moved.Broadcast()
			return n, nil
		case f.broken != nil:
			return 0, f.broken
		case f.eof:
			return 0, io.EOF
		}
		f.moved.Wait()
	}
}

func (c *memConn) Write(p []byte) (n int, err error) {
	request := ""
	if word, _, ok := strings.Cut(string(p[:min(len(p), 8)]), " "); ok && c.up {
		request = word
	}
	c.net.note(Sent{Address: c.address.String(), Up: c.up, Request: request})
	f := c.out
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		room := ConnBuffer - len(f.bytes)
		switch {
		case f.eof:
			return n, net.ErrClosed
		case f.deadline[1].over():
			return n, os.ErrDeadlineExceeded
		case f.gone:
			return n, syscall.EPIPE
		case len(p) == 0:
			return n, nil
		case room > 0:
			m := min(room, len(p))
			f.bytes = append(f.bytes, p[:m]...)
			n, p = n+m, p[m:]
			f.moved.Broadcast()
			continue
		}
		f.moved.Wait()
	}
}

// NotifyDisconnect calls onGone when the other end has closed.
func (c *memConn) NotifyDisconnect(onGone func()) {
	f := c.in
	f.mu.Lock()
	eof := f.eof
	if !eof {
		f.onGone = onGone
	}
	f.mu.Unlock()
	if eof {
		onGone()
	}
}

// SetLinger has Close break the connection.
func (c *memConn) SetLinger(int) error {
	c.reset = true
	return nil
}

func (c *memConn) Close() error {
	c.once.Do(func() {
		c.net.note(Sent{Address: c.address.String(), Up: c.up, closed: true})
		var broken error
		if c.reset {
			broken = syscall.ECONNRESET
		}
		c.out.end(broken)
		c.in.mu.Lock()
		c.in.gone = true
		c.in.moved.Broadcast()
		c.in.mu.Unlock()
		c.in.set(0, time.Time{})
		c.out.set(1, time.Time{})
	})
	return nil
}

func (c *memConn) LocalAddr() net.Addr  { return c.address }
func (c *memConn) RemoteAddr() net.Addr { return c.address }

func (c *memConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.set(0, t)
	return nil
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.set(1, t)
	return nil
}
