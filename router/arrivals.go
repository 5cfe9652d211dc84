package router

import (
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// arrivals accepts the clients' connections and gives them to whichever edge has its turn. It knows which of them have not
// brought a byte yet: the HTTP server takes those for busy ones, so that one that a client opened for later would hold up
// a shutdown until its read timeout. At the end it has whatever is still read be answered.
type arrivals struct {
	ln    net.Listener
	conns chan net.Conn // closed when no more are to come
	pages sync.Pool     // of *page

	mu     sync.Mutex
	silent map[*arrival]struct{}
	open   map[*arrival]struct{}
}

// arrival is a client's connection.
type arrival struct {
	*net.TCPConn
	from  *arrivals
	since time.Time
	spoke atomic.Bool
	ends  atomic.Bool // nothing more is read

	patient patient
	page    *page  // that early is in; nil if that is empty
	early   []byte // read before it was asked for

	joins bool   // what is written next leaves with what is written behind it
	kept  []byte // that, while it waits
}

func newArrivals(ln net.Listener) *arrivals {
	return &arrivals{ln: ln, conns: make(chan net.Conn), silent: map[*arrival]struct{}{}, open: map[*arrival]struct{}{}}
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
			a := &arrival{TCPConn: tcp, from: l, since: time.Now(), patient: newPatient(tcp, &l.pages)}
			l.mu.Lock()
			l.silent[a], l.open[a] = struct{}{}, struct{}{}
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

// stopReading has every read on a connection that is open fail from now on as one that took too long: the HTTP server then
// answers the request that it was reading.
func (l *arrivals) stopReading() {
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, a := range open {
		a.ends.Store(true)
		_ = a.TCPConn.SetReadDeadline(time.Now())
	}
}

// left returns how many connections are open.
func (l *arrivals) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

func (l *arrivals) remove(a *arrival) {
	if !a.spoke.CompareAndSwap(false, true) {
		return
	}
	l.mu.Lock()
	delete(l.silent, a)
	l.mu.Unlock()
}

// Read notes the first byte. The server waits for a request by asking for one byte, and holds no memory for it meanwhile: what has
// come with that is kept until it asks for the rest, at once.
func (a *arrival) Read(p []byte) (n int, err error) {
	switch {
	case len(a.early) > 0:
		return a.takeEarly(p), nil
	case len(p) == 1 && a.patient.can():
		if a.page, n, err = a.patient.read(); n > 0 {
			a.early = a.page[:n]
			n = a.takeEarly(p)
		}
	default:
		n, err = a.TCPConn.Read(p)
	}
	if n > 0 && !a.spoke.Load() {
		a.from.remove(a)
	}
	return n, err
}

// takeEarly returns what was read before.
func (a *arrival) takeEarly(p []byte) int {
	n := copy(p, a.early)
	if a.early = a.early[n:]; len(a.early) == 0 {
		a.from.pages.Put(a.page)
		a.page, a.early = nil, nil
	}
	return n
}

// joinNext has what is written next leave with what is written behind it, which there must be. Both are within the write deadline that holds
// then: it is taken away behind them.
func (a *arrival) joinNext() { a.joins = true }

// Write writes all of p.
func (a *arrival) Write(p []byte) (int, error) {
	if a.joins {
		a.joins, a.kept = false, append(a.kept, p...)
		return len(p), nil
	}
	before := len(a.kept)
	if before > 0 {
		p, a.kept = append(a.kept, p...), a.kept[:0]
	}
	n, err := a.write(p)
	if before > 0 {
		_ = a.TCPConn.SetWriteDeadline(time.Time{})
	}
	return max(0, n-before), err
}

func (a *arrival) write(p []byte) (int, error) {
	if a.patient.can() {
		return a.patient.write(p)
	}
	return a.TCPConn.Write(p)
}

// Close closes the connection.
func (a *arrival) Close() error {
	a.from.remove(a)
	a.from.mu.Lock()
	delete(a.from.open, a)
	a.from.mu.Unlock()
	return a.TCPConn.Close()
}

// SetWriteDeadline sets when writes fail. One that is taken away holds until what is kept has left.
func (a *arrival) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && len(a.kept) > 0 {
		return nil
	}
	return a.TCPConn.SetWriteDeadline(t)
}

// SetReadDeadline sets when reads fail, which stays now if nothing more is to be read.
func (a *arrival) SetReadDeadline(t time.Time) error {
	err := a.TCPConn.SetReadDeadline(t)
	if a.ends.Load() { // looked at behind the call, as stopReading sets it before its own: the last one says now
		return a.TCPConn.SetReadDeadline(time.Now())
	}
	return err
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
