package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"pdrouter/internal/httpsyntax"
	"pdrouter/internal/nonblock"
)

// maxChunkLine is how long the line before a chunk may be.
const maxChunkLine = 256

// bodyState is what comes next in an answer's body.
type bodyState uint8

const (
	bodyBytes    bodyState = iota // left bytes of the body or of a chunk
	bodyChunkEnd                  // the CRLF after a chunk
	bodyChunk                     // the line before a chunk
	bodyTrailer                   // the lines after the last chunk
	bodyWhole                     // nothing
)

// Response is the response to one request. It belongs to one goroutine at a time, and must be closed.
type Response struct {
	Status      int
	ContentType string        // as sent
	Metadata    string        // as sent
	RetryAfter  time.Duration // what the answer asks for; 0 if it does not
	Early       bool          // the engine has answered, and closed, before it had the whole request: the body may be lost in part
	Resent      bool          // the request was sent a second time, and may have arrived twice

	up      *Client
	c       *conn // nil once closed
	ctx     context.Context
	stop    func() bool // of context.AfterFunc; nil for a Canceler
	chunked bool
	close   bool
	state   bodyState
	left    int64 // of bodyBytes
	trailer int   // bytes of it
	err     error // what ended the reading
}

// setHead prepares the reading of the body.
func (r *Response) setHead(h answerHead) {
	r.Status, r.chunked, r.close, r.left = h.status, h.chunked, h.close, h.length
	r.RetryAfter, r.Metadata = h.rest, string(h.meta)
	switch string(h.kind) {
	case "application/json":
		r.ContentType = "application/json"
	case "text/event-stream; charset=utf-8":
		r.ContentType = "text/event-stream; charset=utf-8"
	default:
		r.ContentType = string(h.kind)
	}
	switch {
	case h.chunked:
		r.state = bodyChunk
	case h.length == 0:
		r.state = bodyWhole
	}
}

// Read reads the body: what there is, without waiting for more once it has some. It returns io.EOF only if the whole
// body was read; a truncated body is an *Error.
func (r *Response) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.c == nil {
		return 0, &Error{PhaseBody, io.ErrClosedPipe}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n := 0
	for n < len(p) && r.state != bodyWhole {
		more, err := r.step(p[n:], n == 0)
		n += more
		if n > 0 && errors.Is(err, errNoBytes) {
			return n, nil
		}
		if r.woken(err) {
			return n, err // the next read goes on
		}
		if err != nil {
			return n, r.fail(err)
		}
	}
	if n == 0 {
		r.err = io.EOF
		return 0, io.EOF
	}
	return n, nil
}

// Take returns bytes of the body that have arrived, or none if it would have to wait: Await waits. The bytes are valid until the next
// call of either. Its errors are those of Read.
func (r *Response) Take() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.c == nil {
		return nil, &Error{PhaseBody, io.ErrClosedPipe}
	}
	for r.state != bodyWhole {
		if r.state == bodyBytes {
			b := r.c.buf[r.c.r:r.c.w]
			b = b[:min(int64(len(b)), r.left)]
			r.c.r += len(b)
			r.used(len(b))
			return b, nil
		}
		if _, err := r.step(nil, false); errors.Is(err, errNoBytes) {
			return nil, nil
		} else if err != nil {
			return nil, r.fail(err)
		}
	}
	r.err = io.EOF
	return nil, io.EOF
}

// Await waits until there is more to take. After os.ErrDeadlineExceeded itself, which Canceler.SetReadDeadline causes, it may be
// called again.
func (r *Response) Await() error {
	if r.err != nil {
		return r.err
	}
	if r.c == nil {
		return &Error{PhaseBody, io.ErrClosedPipe}
	}
	err := r.c.fill(nonblock.BufSize)
	if err == nil || r.woken(err) {
		return err
	}
	return r.fail(err)
}

// woken reports whether a read deadline ended a wait, and not the end of the request.
func (r *Response) woken(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && r.ctx.Err() == nil
}

// answeredEarly reads the head of an answer that came before the whole request could be written.
func (r *Response) answeredEarly() (answerHead, bool) {
	r.wake(time.Now().Add(earlyWithin))
	h, err := r.c.readHead()
	r.wake(time.Time{})
	return h, err == nil
}

// wake ends reads on the connection at t, unless the request has ended. The zero time means never.
func (r *Response) wake(t time.Time) {
	if l, ok := r.ctx.(*Canceler); ok {
		l.SetReadDeadline(t)
		return
	}
	_ = r.c.nc.SetReadDeadline(t)
	if r.ctx.Err() != nil { // it may have interrupted the connection before
		r.c.interrupt()
	}
}

// AtEnd reports whether the body ends here. If it has to wait to know that, it calls bound before.
func (r *Response) AtEnd(bound func()) bool {
	for {
		b, err := r.Take()
		if err != nil || len(b) > 0 {
			return errors.Is(err, io.EOF)
		}
		if bound != nil {
			bound()
			bound = nil
		}
		if r.Await() != nil {
			return false
		}
	}
}

// errNoBytes says that nothing is buffered and that the connection must not be waited for.
var errNoBytes = errors.New("no bytes")

// fail notes how the reading ended.
func (r *Response) fail(err error) error {
	switch {
	case r.ctx.Err() != nil:
		err = causeOf(r.ctx)
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	r.err = &Error{PhaseBody, err}
	return r.err
}

// step does one thing: it copies bytes of the body to p, reads one line of framing, or waits for the connection if it may.
func (r *Response) step(p []byte, wait bool) (int, error) {
	c := r.c
	if r.state == bodyBytes {
		return r.bytes(p, wait)
	}
	line, rest, ok := httpsyntax.CutLine(c.buf[c.r:c.w])
	if !ok {
		if bytes.IndexByte(c.buf[c.r:c.w], '\n') >= 0 {
			return 0, badHead("line of chunk framing without CRLF")
		}
		if r.state != bodyTrailer && c.w-c.r > maxChunkLine {
			return 0, badHead("line of chunk framing is too long")
		}
		return 0, r.wait(wait)
	}
	c.r = c.w - len(rest)
	switch r.state {
	case bodyChunkEnd:
		if len(line) != 0 {
			return 0, badHead("bytes behind a chunk")
		}
		r.state = bodyChunk
	case bodyChunk:
		size, ok := parseChunk(line)
		if !ok {
			return 0, badHead("size of a chunk")
		}
		r.state, r.left = bodyBytes, size
		if size == 0 {
			r.state = bodyTrailer
		}
	case bodyTrailer:
		if r.trailer += len(line) + 2; r.trailer > MaxHead {
			return 0, badHead("trailer")
		}
		if len(line) == 0 {
			r.state = bodyWhole
		} else if name, _, ok := bytes.Cut(line, []byte{':'}); !ok || !httpsyntax.IsToken(name) || !httpsyntax.IsFieldValue(line) {
			return 0, badHead("trailer")
		}
	}
	return 0, nil
}

// wait reads from the connection into the buffer, if it may.
func (r *Response) wait(may bool) error {
	if !may {
		return errNoBytes
	}
	return r.c.fill(nonblock.BufSize)
}

// bytes copies what is buffered to p; a long rest is read without the buffer.
func (r *Response) bytes(p []byte, wait bool) (int, error) {
	c := r.c
	p = p[:min(int64(len(p)), r.left)]
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	if n == 0 {
		if r.left < nonblock.BufSize || len(p) < nonblock.BufSize/2 || !wait {
			return 0, r.wait(wait)
		}
		var err error
		if n, err = c.nc.Read(p); n == 0 && err != nil {
			return 0, err
		}
		c.got += int64(n)
	}
	r.used(n)
	return n, nil
}

// used notes that so many bytes of the body, or of a chunk, were taken.
func (r *Response) used(n int) {
	if r.left -= int64(n); r.left == 0 {
		r.state = bodyWhole
		if r.chunked {
			r.state = bodyChunkEnd
		}
	}
}

// parseChunk reads the line before a chunk: hexadecimal digits, at most 15 of them, and extensions, which are ignored.
func parseChunk(line []byte) (int64, bool) {
	digits, extension, found := bytes.Cut(line, []byte{';'})
	if found {
		digits = bytes.TrimRight(digits, " \t")
		if !httpsyntax.IsFieldValue(extension) {
			return 0, false
		}
	}
	if len(digits) == 0 || len(digits) > 15 || len(line) > maxChunkLine {
		return 0, false
	}
	n := int64(0)
	for _, c := range digits {
		d, ok := httpsyntax.HexDigit(c)
		if !ok {
			return 0, false
		}
		n = n<<4 | int64(d)
	}
	return n, true
}

// ReadAll appends the rest of the body to dst. More than max bytes is an error with ErrTooLarge.
func (r *Response) ReadAll(dst []byte, max int) ([]byte, error) {
	from := len(dst)
	if !r.chunked && r.state == bodyBytes && r.left > int64(max) {
		return dst, r.fail(ErrTooLarge)
	}
	for {
		room := 512 // of framing and chunks to come
		if r.state == bodyWhole || r.state == bodyBytes && !r.chunked {
			room = 1 // to see the end
		}
		if r.state == bodyBytes {
			room += int(min(r.left, int64(max)))
		}
		dst = slices.Grow(dst, room)
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst, err
		case len(dst)-from > max:
			return dst, r.fail(ErrTooLarge)
		}
	}
}

// attach makes the end of the context interrupt the connection.
func (r *Response) attach() {
	if l, ok := r.ctx.(*Canceler); ok {
		l.attach(r.c)
		return
	}
	r.stop = context.AfterFunc(r.ctx, r.c.interrupt)
}

// detach reports false if the connection is, or may be, interrupted.
func (r *Response) detach() bool {
	if l, ok := r.ctx.(*Canceler); ok {
		return l.detach()
	}
	return r.stop()
}

// Close gives the connection back if the whole body was read, and closes it if not. It may be called twice.
func (r *Response) Close() {
	c := r.c
	if c == nil {
		return
	}
	r.c = nil
	if r.err == nil {
		r.err = &Error{PhaseBody, io.ErrClosedPipe}
	}
	if r.detach() && r.state == bodyWhole && !r.close && c.r == c.w {
		r.up.idle.put(c)
		return
	}
	c.nc.Close()
}
