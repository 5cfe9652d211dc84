package edge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/httpsyntax"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// roomSizes are the capacities that a body's buffer grows through. Past the last it doubles. So a client has sent an eighth
// of what its body occupies, or the body occupies the first of these.
var roomSizes = [...]int{8 << 10, 64 << 10, 512 << 10}

// clientBodies are the bodies of the requests that are being read or served, and their buffers. Their bytes are counted.
type clientBodies struct {
	held   atomic.Int64  // bytes of buffers in use, and of copies
	opened atomic.Uint64 // bodies that were begun to be read
	free   sync.Pool     // of *clientBody
	rooms  [len(roomSizes)]sync.Pool

	tenants tenantBytes
}

// tenantBytes are the bytes of larger buffers that each tenant's bodies occupy.
type tenantBytes struct {
	mu   sync.Mutex
	held map[string]int
}

// add counts n bytes for a tenant, unless it would then have more than limit. It reports whether it has. An unknown tenant has no limit.
func (t *tenantBytes) add(tenant string, n, limit int) bool {
	if tenant == "" || n == 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.held[tenant] + n
	if n > 0 && held > limit {
		return false
	}
	if t.held == nil {
		t.held = make(map[string]int)
	}
	if t.held[tenant] = held; held == 0 {
		delete(t.held, tenant)
	}
	return true
}

// clientBody is the body of one request, as its client sent it: the bytes of an openai.Body, whose Memory it is. It is in use until all who
// have retained it have released it: the handler, the request's exchange, its drain, each leg that is sent from its bytes, and each job of package
// reclaim. Then its buffer serves another request.
type clientBody struct {
	bytes  []byte
	from   *clientBodies
	refs   atomic.Int32
	class  int     // of the buffer in roomSizes; -1: none of them
	room   *[]byte // what was taken from the pool of that class
	copied atomic.Int64
	tenant string // of the caller; "" if there is none
	mine   int    // bytes that count for the tenant
}

// open returns an empty body that the caller holds. It has no buffer yet.
func (s *clientBodies) open() *clientBody {
	b, ok := s.free.Get().(*clientBody)
	if !ok {
		b = &clientBody{from: s}
	}
	b.class = -1
	b.refs.Store(1)
	s.opened.Add(1)
	return b
}

// reserve counts n bytes, unless there would be more than limit.
func (s *clientBodies) reserve(n, limit int) bool {
	if s.held.Add(int64(n)) <= int64(limit) {
		return true
	}
	s.held.Add(-int64(n))
	return false
}

// Retain keeps the bytes from being used again until Release.
func (b *clientBody) Retain() { b.refs.Add(1) }

// Release ends a hold. The last one gives the buffer back.
func (b *clientBody) Release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	b.from.held.Add(-b.copied.Swap(0) - int64(cap(b.bytes)))
	b.from.tenants.add(b.tenant, -b.mine, 0)
	b.recycle()
	b.bytes, b.class, b.room, b.tenant, b.mine = nil, -1, nil, "", 0
	b.from.free.Put(b)
}

// charge counts n bytes that were copied of the body, until the body is dropped. It reports false if they would exceed limit.
func (b *clientBody) charge(n, limit int) bool {
	if !b.from.reserve(n, limit) {
		return false
	}
	b.copied.Add(int64(n))
	return true
}

// grow makes room for more bytes of a body that will have at most most of them. memory bounds what all bodies hold. An eighth of it
// is for bodies that fit into the first room, and half of it is the most for the larger ones of one tenant: so one that sends
// its bodies slowly leaves room for others.
func (b *clientBody) grow(most, memory int) *openai.Error {
	had := cap(b.bytes)
	share := memory / 2
	if had > 0 {
		memory -= memory / 8
	}
	size, class := 2*had, -1
	for i, s := range roomSizes {
		if s > had {
			size, class = s, i
			break
		}
	}
	if class < 0 || size > memory {
		size, class = min(size, most), -1
	}
	if !b.from.reserve(size-had, memory) {
		return errBodyMemory()
	}
	if had > 0 { // most bodies fit into the first room, and are not counted twice
		if !b.from.tenants.add(b.tenant, size-b.mine, share) {
			b.from.held.Add(int64(had - size))
			return errBodyMemory()
		}
		b.mine = size
	}
	var room *[]byte
	if class >= 0 {
		room, _ = b.from.rooms[class].Get().(*[]byte)
	}
	if room == nil {
		made := make([]byte, 0, size)
		room = &made
	}
	grown := append(*room, b.bytes...)
	b.recycle()
	b.bytes, b.class, b.room = grown, class, room
	return nil
}

// recycle gives the buffer to the next body.
func (b *clientBody) recycle() {
	if b.class >= 0 {
		b.from.rooms[b.class].Put(b.room)
	}
}

// errBodyMemory answers a body for which there is no memory at present.
func errBodyMemory() *openai.Error {
	return openai.NewError(reason.BodyMemory, "Too many bytes of request bodies are held at present.")
}

// mostUnused is how many bytes a body may have on a route that uses none.
const mostUnused = 4 << 10

// readBody reads the body of a request, which the caller then holds.
func (srv *Edge) readBody(a *clientConn, q *request, f bodyFraming) (*clientBody, *openai.Error) {
	most, cfg := int(q.snapshot.Config.Limits.Body), q.snapshot.Config
	if !q.route.does.reads() {
		most = min(most, mostUnused)
	}
	if f.length > int64(most) {
		return nil, openai.ErrTooLarge(most)
	}
	if f.expects && f.length != 0 {
		_ = a.SetWriteDeadline(time.Now().Add(cfg.Timeouts.Write))
		if _, err := io.WriteString(a, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return nil, srv.errReading(err)
		}
	}
	b := srv.bodies.open()
	b.tenant = q.who.Tenant
	if err := a.readInto(b, most, int(cfg.Limits.BodyMemory)); err != nil {
		b.Release()
		return nil, srv.errReading(err)
	}
	return b, nil
}

// errReading is the answer to a request whose body could not be read.
func (srv *Edge) errReading(err error) *openai.Error {
	var e *openai.Error
	if errors.As(err, &e) {
		return e
	}
	e = openai.ErrFraming("The request could not be read.")
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		e = srv.errUnfinished()
	}
	e.Err = err
	return e
}

// errUnfinished answers a request that has not arrived in time. At the end of a shutdown the time is over for all of them.
func (srv *Edge) errUnfinished() *openai.Error {
	if srv.turnsAway() {
		return openai.ErrDraining()
	}
	return openai.NewError(reason.Timeout, "The request did not arrive in time.")
}

// readInto appends what follows the head to b. An error that is an *Error says what is wrong with the bytes.
func (a *clientConn) readInto(b *clientBody, most, memory int) error {
	if !a.chunked {
		if err := a.readPart(b, int(a.bodyLeft), memory); err != nil {
			return err
		}
		a.unfinished = false
		return nil
	}
	for {
		size, err := a.chunkSize()
		switch {
		case err != nil:
			return err
		case size == 0:
			if err = a.skipTrailer(); err == nil {
				a.unfinished = false
			}
			return err
		case size > int64(most-len(b.bytes)):
			return openai.ErrTooLarge(most)
		}
		a.bodyLeft = size
		if err = a.readPart(b, most, memory); err != nil {
			return err
		}
		var end [2]byte
		if line, err := a.readLine(end[:0]); err != nil {
			return err
		} else if len(line) != 0 {
			return openai.ErrFraming("A chunk is longer than its size.")
		}
	}
}

// readPart reads what is left of the body, or of its chunk. The body will have at most most bytes.
func (a *clientConn) readPart(b *clientBody, most, memory int) error {
	for a.bodyLeft > 0 {
		if len(a.buffered) == 0 && len(b.bytes) == 0 { // hold no buffer until there are bytes
			if err := a.fill(); err != nil {
				return err
			}
		}
		if len(b.bytes) == cap(b.bytes) {
			if e := b.grow(most, memory); e != nil {
				return e
			}
		}
		to := b.bytes[len(b.bytes):min(int64(cap(b.bytes)), int64(len(b.bytes))+a.bodyLeft)]
		n, err := a.readSome(to)
		b.bytes, a.bodyLeft = b.bytes[:len(b.bytes)+n], a.bodyLeft-int64(n)
		if err != nil && a.bodyLeft > 0 {
			return unexpected(err)
		}
	}
	return nil
}

// longestLine bounds a line between the chunks of a body, and mostTrailers how many fields may follow them.
const (
	longestLine  = 1 << 10
	mostTrailers = 32
)

// chunkSize reads the line before a chunk. Extensions of the chunk are skipped.
func (a *clientConn) chunkSize() (int64, error) {
	var room [longestLine]byte
	line, err := a.readLine(room[:0])
	if err != nil {
		return 0, err
	}
	size, i := int64(0), 0
	for ; i < len(line); i++ {
		digit, ok := httpsyntax.HexDigit(line[i])
		if !ok {
			break
		}
		size = size<<4 | int64(digit)
	}
	rest := line[i:]
	if i == 0 || i > 15 || len(rest) > 0 && rest[0] != ';' || !httpsyntax.IsFieldValue(rest) {
		return 0, openai.ErrFraming("A chunk's size is not valid.")
	}
	return size, nil
}

// skipTrailer reads the fields after the last chunk, and drops them: none of them means anything here.
func (a *clientConn) skipTrailer() error {
	for range mostTrailers + 1 {
		var room [longestLine]byte
		line, err := a.readLine(room[:0])
		if err != nil || len(line) == 0 {
			return err
		}
		if _, _, e := cutField(line); e != nil {
			return e
		}
	}
	return openai.ErrFraming("The request has more than %d trailer fields.", mostTrailers)
}

// readLine appends the next line to dst, without its end, which must be CRLF. A line that dst has no room for is refused.
func (a *clientConn) readLine(dst []byte) ([]byte, error) {
	for {
		if len(a.buffered) == 0 {
			if err := a.fill(); err != nil {
				return nil, err
			}
		}
		c := a.buffered[0]
		a.drop(1)
		switch {
		case c == '\n' && len(dst) > 0 && dst[len(dst)-1] == '\r':
			return dst[:len(dst)-1], nil
		case c == '\n':
			return nil, openai.ErrFraming("A line of the body's framing does not end in CRLF.")
		case len(dst) == cap(dst):
			return nil, openai.ErrFraming("A line of the body's framing is too long.")
		}
		dst = append(dst, c)
	}
}

// unexpected is how a read ended before what was to be read had come.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the client has left: %w", io.ErrUnexpectedEOF)
	}
	return err
}
