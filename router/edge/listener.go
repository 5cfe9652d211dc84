package edge

import (
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/nonblock"
)

// listener accepts the clients' connections for the HTTP server. It knows which of them have not
// brought a byte yet: the HTTP server takes those for busy ones, so that one that a client opened for later would hold up
// a shutdown until its read timeout. At the end it has whatever is still read be answered.
type listener struct {
	ln    net.Listener
	conns chan net.Conn // closed when no more are to come
	bufs  sync.Pool     // of *nonblock.Buf

	most   int            // connections at once; 0 is no limit
	refuse func(net.Conn) // answers and closes one more

	mu     sync.Mutex
	silent map[*clientConn]struct{}
	open   map[*clientConn]struct{}
}

// clientConn is a client's connection. The HTTP server reads the heads of requests from it, and nothing else: a body is read by
// readBody, which the handler calls.
type clientConn struct {
	net.Conn
	from  *listener
	since time.Time
	spoke atomic.Bool
	ends  atomic.Bool // nothing more is read
	stops atomic.Bool // an answer that is being written is not written to its end
	// The connection ends with bytes of a request unread.
	lingers atomic.Bool

	raw      nonblock.Conn
	buf      *nonblock.Buf // buffered lies in it; nil if that is empty
	buffered []byte        // read before it was asked for

	head       headEnd
	unfinished bool  // a head has been read, and not all that belongs to its request
	bodyLeft   int64 // bytes of the body, or of its chunk, that are still to be read
	chunked    bool  // the body
	closes     bool  // the client wants the connection closed after the answer
	unreadable bool  // the server could not read the head of the request

	joins  bool          // what is written next leaves with the write after it
	unsent []byte        // that, while it waits
	limit  time.Duration // for each part of the answer, see write; 0: writes have the deadline that was set last
}

func newListener(ln net.Listener) *listener {
	return &listener{ln: ln, conns: make(chan net.Conn), silent: map[*clientConn]struct{}{}, open: map[*clientConn]struct{}{}}
}

// run accepts until the listener ends, and returns why it did.
func (l *listener) run() error {
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
		if l.full() {
			l.refuse(conn)
			continue
		}
		l.conns <- l.add(conn)
	}
}

// full reports whether there are as many connections as there may be.
func (l *listener) full() bool { return l.most > 0 && l.openCount() >= l.most }

// add notes a connection.
func (l *listener) add(conn net.Conn) *clientConn {
	a := &clientConn{Conn: conn, from: l, since: time.Now(), raw: nonblock.NewConn(conn, &l.bufs)}
	l.mu.Lock()
	l.silent[a], l.open[a] = struct{}{}, struct{}{}
	l.mu.Unlock()
	return a
}

// closeSilent closes the connections that have brought nothing since before, and reports whether there are others.
func (l *listener) closeSilent(before time.Time) bool {
	var old []*clientConn
	l.mu.Lock()
	for a := range l.silent {
		if a.since.Before(before) {
			old = append(old, a)
		}
	}
	others := len(l.silent) > len(old)
	l.mu.Unlock()
	for _, a := range old {
		_ = a.end()
	}
	return others
}

// stopReading has every read on a connection that is open fail from now on as one that took too long: the HTTP server then
// answers the request that it was reading.
func (l *listener) stopReading() {
	for _, a := range l.all() {
		a.ends.Store(true)
		_ = a.Conn.SetReadDeadline(time.Now())
	}
}

// stopWriting has every write that waits for its client fail as one that took too long.
func (l *listener) stopWriting() {
	for _, a := range l.all() {
		a.stops.Store(true)
		_ = a.Conn.SetWriteDeadline(time.Now())
	}
}

// all returns the connections that are open.
func (l *listener) all() []*clientConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.open))
}

// openCount is how many connections are open.
func (l *listener) openCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// noteSpoken takes a connection off the silent ones: its first byte is here, or it ends.
func (l *listener) noteSpoken(a *clientConn) {
	if !a.spoke.CompareAndSwap(false, true) {
		return
	}
	l.mu.Lock()
	delete(l.silent, a)
	l.mu.Unlock()
}

// Read reads a request's head for the server, and nothing after it. The server waits for a request by asking for one byte, and
// holds no memory for it meanwhile: what has come with that is kept until it asks for the rest, at once.
func (a *clientConn) Read(p []byte) (n int, err error) {
	if a.unfinished { // nothing that follows can be trusted to be a request
		return 0, io.EOF
	}
	if len(a.buffered) == 0 && len(p) == 1 && a.raw.Available() {
		if err = a.fill(); err != nil {
			return 0, err
		}
	}
	if len(a.buffered) > 0 {
		n = a.consume(p, a.buffered[:min(len(p), len(a.buffered))])
		a.drop(n)
		return n, nil
	}
	n, err = a.readSome(p[:min(len(p), nonblock.BufSize)])
	head := a.consume(p, p[:n])
	if head < n {
		a.buf = nonblock.GetBuf(&a.from.bufs)
		a.buffered = a.buf[:copy(a.buf[:], p[head:n])]
	}
	return head, err
}

// consume copies as much of b as belongs to the head.
func (a *clientConn) consume(p, b []byte) int {
	end := a.head.find(b)
	if a.unfinished = end >= 0; a.unfinished {
		b = b[:end]
	}
	return copy(p, b)
}

// fill waits for bytes, which it keeps. There must be none yet.
func (a *clientConn) fill() (err error) {
	n := 0
	if a.raw.Available() {
		a.buf, n, err = a.raw.Read()
	} else {
		a.buf = nonblock.GetBuf(&a.from.bufs)
		n, err = a.Conn.Read(a.buf[:])
	}
	if n == 0 {
		if a.buf != nil {
			a.from.bufs.Put(a.buf)
			a.buf = nil
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	a.buffered = a.buf[:n]
	a.from.noteSpoken(a)
	return nil
}

// readSome reads what was kept, or else from the connection.
func (a *clientConn) readSome(p []byte) (n int, err error) {
	if len(a.buffered) > 0 {
		n = copy(p, a.buffered)
		a.drop(n)
		return n, nil
	}
	if n, err = a.Conn.Read(p); n > 0 {
		a.from.noteSpoken(a)
	}
	return n, err
}

// drop goes past n bytes of what was kept.
func (a *clientConn) drop(n int) {
	if a.buffered = a.buffered[n:]; len(a.buffered) == 0 {
		a.from.bufs.Put(a.buf)
		a.buf, a.buffered = nil, nil
	}
}

// expect begins the body that follows the head.
func (a *clientConn) expect(f bodyFraming) {
	a.chunked, a.bodyLeft, a.closes, a.limit = f.length < 0, max(f.length, 0), f.closes, 0
	a.unfinished = f.length != 0
}

// finishRequest makes the connection ready for the next request. What is here of a body that nothing has read is dropped. It reports false,
// and the connection ends, if more of that body is still to come, or if the client asked for the connection to be closed. The server itself
// knows only the value "close", and not "Close" or "TE, close".
func (a *clientConn) finishRequest() bool {
	if a.unfinished && !a.chunked && a.bodyLeft > 0 && a.bodyLeft <= int64(len(a.buffered)) {
		a.drop(int(a.bodyLeft))
		a.unfinished = false
	}
	a.lingers.Store(a.unfinished)
	return !a.unfinished && !a.closes
}

// JoinNext joins the next write with the one after it, which must come. Both are within the write deadline of that time, which is removed
// after them.
func (a *clientConn) JoinNext() { a.joins = true }

// Write writes all of p.
func (a *clientConn) Write(p []byte) (int, error) {
	if a.joins {
		a.joins, a.unsent = false, append(a.unsent, p...)
		return len(p), nil
	}
	before := len(a.unsent)
	if before > 0 {
		p, a.unsent = append(a.unsent, p...), a.unsent[:0]
	}
	n, err := a.write(p)
	if before > 0 {
		_ = a.Conn.SetWriteDeadline(time.Time{})
	}
	return max(0, n-before), err
}

// answerPart is how much of an answer its client has to read within the limit of a write.
const answerPart = 64 << 10

// write writes all of p. A large answer is written in parts, each with a deadline of its own: what ends it is a client that does not read,
// and not one that reads slowly.
func (a *clientConn) write(p []byte) (n int, _ error) {
	if a.limit == 0 {
		return a.writePart(p)
	}
	for {
		_ = a.Conn.SetWriteDeadline(time.Now().Add(a.limit))
		if n > 0 && a.stops.Load() { // read after the call, as stopWriting sets it before its own call: the last of them says now
			_ = a.Conn.SetWriteDeadline(time.Now())
		}
		m, err := a.writePart(p[n:min(len(p), n+answerPart)])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

func (a *clientConn) writePart(p []byte) (int, error) {
	if a.raw.Available() {
		return a.raw.Write(p)
	}
	return a.Conn.Write(p)
}

// Close closes the connection. The server calls it after the last request, and at a shutdown for connections that it takes for idle: a request may just
// have come on them.
func (a *clientConn) Close() error {
	if a.lingers.Swap(false) {
		a.lingerToClose()
	}
	return a.end()
}

// end closes the connection while the server may be reading from it.
func (a *clientConn) end() error {
	a.from.noteSpoken(a)
	a.from.mu.Lock()
	delete(a.from.open, a)
	a.from.mu.Unlock()
	return a.Conn.Close()
}

// NetConn is the connection below.
func (a *clientConn) NetConn() net.Conn { return a.Conn }

// What a client may go on sending after an answer that ends its connection.
const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// lingerToClose reads on for a moment, so that a client that is still sending gets the answer: closed at once, a connection with
// unread bytes is reset, and what has not been read at the other end is lost.
func (a *clientConn) lingerToClose() {
	half, ok := a.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || a.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	for read := 0; read < lingerBytes; {
		if len(a.buffered) == 0 && a.fill() != nil {
			return
		}
		read += len(a.buffered)
		a.drop(len(a.buffered))
	}
}

// SetWriteDeadline sets when writes fail. One that is taken away holds until what is kept has left.
func (a *clientConn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && len(a.unsent) > 0 {
		return nil
	}
	return a.Conn.SetWriteDeadline(t)
}

// SetReadDeadline sets when reads fail. After stopReading they fail at once.
func (a *clientConn) SetReadDeadline(t time.Time) error {
	err := a.Conn.SetReadDeadline(t)
	if a.ends.Load() { // read after the call, as stopReading sets it before its own call: the last of them says now
		return a.Conn.SetReadDeadline(time.Now())
	}
	return err
}

// Accept waits for the next connection. io.EOF says that the listener has ended.
func (l *listener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, io.EOF
	}
	return conn, nil
}

// Addr is where clients connect.
func (l *listener) Addr() net.Addr { return l.ln.Addr() }

// Close implements net.Listener. It does nothing: the listener below belongs to the one who calls run.
func (l *listener) Close() error { return nil }
