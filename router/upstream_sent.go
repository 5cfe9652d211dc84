package router

import (
	"context"
	"time"
)

// sent is a request on its way on a connection that lay idle, if there was one.
type sent struct {
	c    *engineConn       // nil if there was none
	r    *upstreamResponse // nil if nothing was done but to take the connection
	at   time.Time
	head bool  // r has the answer's head
	err  error // of the wait for it
}

// begin sends req on a connection that lay idle and waits for the first of its answer, if that can be done without a wait for anything
// else. What came of it is for answer, which is to be called.
func (u *upstream) begin(ctx context.Context, req *upstreamRequest) sent {
	var s sent
	if ctx.Err() != nil {
		return s
	}
	s.at = time.Now()
	if s.c = u.idle.take(s.at, req.Body, req.Gaps); s.c == nil {
		return s
	}
	if s.c.asks(req.Body, req.Gaps) {
		if s.r, s.err = u.open(ctx, s.c, req); s.err == nil {
			s.err = s.c.ask(req.Body)
		}
	}
	return s
}

// whole waits for the rest of an answer that is short, and says how long it is. It reports false if that is not so, or if the wait was
// ended; else nobody who reads the answer has to wait.
func (s *sent) whole() bool {
	if s.r == nil || s.err != nil || s.c.put < int64(len(s.c.out)) {
		return false
	}
	var h answerHead
	if h, s.err = s.c.readHead(); s.err != nil {
		return false
	}
	s.head = true
	s.r.begin(h)
	if h.chunked || h.length > readBuffer {
		return false
	}
	for int64(s.c.w-s.c.r) < h.length {
		if s.c.fill(readBuffer) != nil { // who reads meets it again
			return false
		}
	}
	return true
}

// goOn does what is left of sending a request when the wait for its answer was over: it was woken, or could not begin as not all
// could be written at once.
func (c *engineConn) goOn(woken bool) error {
	switch {
	case woken && c.put == 0: // before it was seen whether the connection is quiet
		return errNotQuiet
	case c.put < int64(len(c.out)):
		n, err := c.nc.Write(c.out[c.put:])
		c.put += int64(n)
		return err
	}
	return nil
}
