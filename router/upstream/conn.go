package upstream

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"time"

	"pdrouter/internal/gather"
	"pdrouter/internal/nonblock"
)

// MaxHead is how many bytes the head of a response may have.
const MaxHead = 64 << 10

const (
	joinBody   = 16 << 10 // a body of up to so many bytes is copied after its head, so that both leave in one write
	maxInterim = 8        // 1xx answers before the real one
)

// conn is one connection to an engine. It belongs to one request at a time, or is idle. It has a buffer only while
// that holds bytes.
type conn struct {
	parts gather.Writer

	nc        net.Conn
	bufs      *sync.Pool    // of *nonblock.Buf
	pooled    *nonblock.Buf // that buf is; nil if buf is nil or has grown
	buf       []byte
	r, w      int    // buf[r:w] is read and not yet used
	got       int64  // bytes read for this request
	put       int64  // bytes written for this request
	out       []byte // the request's head
	head      []byte // the head of the response
	since     time.Time
	idleCheck nonblock.IdleCheck
	raw       nonblock.Conn
}

// interrupt ends what is going on and all that follows. It may be called from any goroutine.
func (c *conn) interrupt() { c.nc.SetDeadline(longAgo) }

// send writes the head in c.out and the body.
func (c *conn) send(body []byte, g gather.Gaps) error {
	if len(body) <= joinBody && len(g) == 0 {
		c.out = append(c.out, body...)
		n, err := c.nc.Write(c.out)
		c.put = int64(n)
		return err
	}
	var err error
	c.put, err = c.parts.Write(c.nc, c.out, body, g)
	return err
}

// asks reports whether ask can send a request of that body.
func (c *conn) asks(body []byte, g gather.Gaps) bool {
	return len(body) <= joinBody && len(g) == 0 && c.raw.Available()
}

// ask is send on a connection that was idle. It also waits for the first bytes of the answer if the whole request can be written at once.
func (c *conn) ask(body []byte) error {
	c.out = append(c.out, body...)
	p, n, put, err := c.raw.WriteRead(c.out)
	if c.put = int64(put); n > 0 {
		c.use(p)
		c.w, c.got = n, int64(n)
	}
	if err == nil && put < len(c.out) {
		put, err = c.nc.Write(c.out[put:])
		c.put += int64(put)
	}
	return err
}

// use has the connection read into a pooled buffer.
func (c *conn) use(p *nonblock.Buf) { c.pooled, c.buf = p, p[:] }

// releaseBuffer gives the buffer back, whatever is in it.
func (c *conn) releaseBuffer() {
	if c.pooled != nil {
		c.bufs.Put(c.pooled)
	}
	c.pooled, c.buf, c.r, c.w = nil, nil, 0, 0
}

// fill reads more bytes into buf, which it grows to at most max. If nothing is in it, it is not held while there is nothing to be
// read.
func (c *conn) fill(max int) error {
	if c.r == c.w {
		c.releaseBuffer()
		if c.raw.Available() {
			p, n, err := c.raw.Read()
			if n > 0 {
				c.use(p)
				c.w = n
				c.got += int64(n)
			}
			return err
		}
		c.use(nonblock.GetBuf(c.bufs))
	}
	if c.w == len(c.buf) {
		switch {
		case c.r > 0:
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		case len(c.buf) < max:
			grown := make([]byte, min(2*len(c.buf), max))
			w := copy(grown, c.buf)
			c.releaseBuffer()
			c.buf, c.w = grown, w
		default:
			return fmt.Errorf("more than %d bytes of framing: %w", max, ErrBadResponse)
		}
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	c.got += int64(n)
	if n > 0 {
		return nil // an error comes again with the next read
	}
	return err
}

// readHead reads the head of the answer, past interim ones.
func (c *conn) readHead() (answerHead, error) {
	for range maxInterim + 1 {
		looked := 0
		for {
			if i := bytes.Index(c.buf[c.r+looked:c.w], []byte("\r\n\r\n")); i >= 0 {
				looked += i + 4
				break
			}
			looked = max(c.w-c.r-3, 0)
			if c.w-c.r >= MaxHead {
				if bytes.Contains(bytes.ToLower(c.buf[c.r:c.w]), []byte("\r\nmetadata:")) { // as large as the client's request has it be
					return answerHead{}, ErrHeadTooLarge
				}
				return answerHead{}, fmt.Errorf("a head of more than %d bytes: %w", MaxHead, ErrBadResponse)
			}
			if err := c.fill(MaxHead); err != nil {
				return answerHead{}, err
			}
		}
		c.head = append(c.head[:0], c.buf[c.r:c.r+looked]...)
		c.r += looked
		h, err := parseHead(c.head)
		if err != nil || h.status >= 200 {
			return h, err
		}
		if h.status == 101 {
			return h, fmt.Errorf("status 101: %w", ErrBadResponse)
		}
	}
	return answerHead{}, fmt.Errorf("too many interim answers: %w", ErrBadResponse)
}

// idleConns are the connections of one engine that wait for a request, the longest idle first.
type idleConns struct {
	mu     sync.Mutex
	max    int
	conns  []*conn
	timer  *time.Timer // set while conns is not empty
	closed bool
}

// take returns the connection that was idle for the shortest time, nil if there is none that may be used. One that its engine has
// closed, or on which bytes came that nobody asked for, is closed: those bytes would be taken for the next answer. If the request
// will be asked (see conn.asks), that is seen then.
func (p *idleConns) take(now time.Time, body []byte, g gather.Gaps) *conn {
	p.mu.Lock()
	var c *conn
	if n := len(p.conns) - 1; n >= 0 && now.Sub(p.conns[n].since) < idleTimeout {
		c = p.conns[n]
		p.conns[n] = nil
		p.conns = p.conns[:n]
	}
	p.mu.Unlock()
	if c != nil && !c.asks(body, g) && !c.idleCheck.Idle() {
		c.nc.Close()
		return nil
	}
	return c
}

// put keeps c for another request, or closes it.
func (p *idleConns) put(c *conn) {
	c.releaseBuffer()
	if cap(c.out) > 2*joinBody {
		c.out = nil
	}
	c.since = time.Now()
	p.mu.Lock()
	full := p.closed || len(p.conns) >= p.max
	if !full {
		p.conns = append(p.conns, c)
		if p.timer == nil {
			p.timer = time.AfterFunc(idleTimeout, p.reap)
		}
	}
	p.mu.Unlock()
	if full {
		c.nc.Close()
	}
}

// bound has at most max connections be kept from now on. More that there are go as they have been idle for too long.
func (p *idleConns) bound(max int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.max = max
}

// reap closes what has been idle for too long.
func (p *idleConns) reap() {
	p.mu.Lock()
	n := 0
	for n < len(p.conns) && time.Since(p.conns[n].since) >= idleTimeout {
		n++
	}
	old := append([]*conn(nil), p.conns[:n]...)
	rest := copy(p.conns, p.conns[n:])
	clear(p.conns[rest:])
	p.conns = p.conns[:rest]
	p.timer = nil
	if rest > 0 {
		p.timer = time.AfterFunc(idleTimeout-time.Since(p.conns[0].since), p.reap)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.nc.Close()
	}
}

func (p *idleConns) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.nc.Close()
	}
}
