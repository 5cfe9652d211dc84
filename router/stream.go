package router

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// errCut ends a client's connection behind an error event, so that no client takes a part for the whole.
var errCut = errors.New("the answer was cut")

// chunk is how much of a stream is read at once, in bytes.
const chunk = 16 << 10

// streamRoom is the memory of one stream while it is relayed. It is used again.
type streamRoom struct {
	chunk  [chunk]byte
	frames sseFrames
	out    []byte
}

// keptRoom is how many bytes of whole events are kept for the next stream.
const keptRoom = 64 << 10

// stream relays decode's answer event by event. It has Read and CloseWithError, which are called by the goroutine
// that serves the client's connection: the owner of the exchange.
type stream struct {
	x      *exchange
	a      *attempt
	room   *streamRoom // holds what frames, buf and out are; nil once given back
	frames *sseFrames
	buf    []byte
	timer  *time.Timer // two events are too far apart
	conn   net.Conn    // the client's; nil in tests
	silent bool        // the last read brought nothing within the time of a keep-alive
	woken  time.Time   // when the read is to end for that; zero if it is not
	signed time.Time   // when conn's write deadline was set

	begins []byte // the first event of the answer, until the owner has it; lies in frames
	out    []byte // whole events that the client has not got
	ready  int    // of out, the bytes that were read
	seen   bool   // the terminal event was read
	wrong  reason // why what follows out is not relayed
	told   bool   // the engine's own error event is the last of out
	events int    // that were taken, comments too
	err    error  // what Read returns once out is empty
}

// relayed is an answer that is sent as it comes. begin has it know the client's connection, before anything else is called.
type relayed interface {
	Read(p []byte) (int, error)
	CloseWithError(err error) error
	begin(conn net.Conn)
}

func newStream(x *exchange, a *attempt) *stream {
	room, ok := x.r.rooms.Get().(*streamRoom)
	if !ok {
		room = new(streamRoom)
	}
	room.frames.reset(x.s.cfg.Limits.Event)
	return &stream{x: x, a: a, room: room, frames: &room.frames, buf: room.chunk[:], out: room.out[:0]}
}

// first reads up to the first event of an answer. It is the leg's: open is the owner's.
func (s *stream) first(sh shape) (v verdict) {
	var early []byte
	early, s.begins, v = s.a.decode.first(s.frames, s.buf, sh)
	s.out = append(s.out, early...)
	return v
}

// open takes what was read up to now. It reports false, and lets go of all, if the client may not have it.
func (s *stream) open() bool {
	s.events, s.x.pieces = s.a.decode.early, 0
	if !s.relay(s.begins) {
		s.free()
		return false
	}
	for s.begins = nil; s.next(); {
	}
	return true
}

// free gives the room back. The stream is not read any more.
func (s *stream) free() {
	room := s.room
	if room == nil {
		return
	}
	if room.out = s.out; cap(room.out) > keptRoom {
		room.out = nil
	}
	if cap(room.frames.buf) > keptRoom {
		room.frames.buf = nil
	}
	s.room, s.frames, s.buf, s.out, s.ready = nil, nil, nil, nil, 0
	s.x.r.rooms.Put(room)
}

// take appends a whole event to what the client gets, without the engines' hand-off, and with prefill's count of cached tokens.
func (s *stream) take(event []byte) (ok bool) {
	at := len(s.out)
	if s.out, ok = stripEvent(s.out, event); ok && s.a.split {
		cached, created := s.x.prefillCached(s.a)
		s.out = tellCached(s.out, at, cached, created)
	}
	return ok
}

// next takes one whole event, if there is one that the client may have.
func (s *stream) next() bool {
	if s.seen || s.wrong != whyNone {
		return false
	}
	event, ok := s.frames.Next()
	return ok && s.relay(event)
}

// relay takes one whole event if the client may have it.
func (s *stream) relay(event []byte) bool {
	if s.x.onward != nil && s.x.onward.joined {
		return s.relayOnward(event)
	}
	switch s.x.b.shape.kindOf(event) {
	case eventDone:
		s.seen = true
		s.events++
		s.count(event)
	case eventError:
		s.wrong = whyDecodeFailed
		if s.x.onward == nil {
			s.told = s.take(event)
		}
		return false
	case eventData:
		s.x.pieces++
		s.events++
		s.count(event)
		if s.x.onward != nil {
			event = s.x.onward.note(event)
		}
	}
	if !s.take(event) {
		s.wrong = whyBadUpstream
		return false
	}
	return true
}

// count reads the usage of the event that has it.
func (s *stream) count(event []byte) {
	if !hasUsage(event) {
		return
	}
	if p, ok := eventPayload(event); ok {
		if ans, ok := parseAnswer(p); ok {
			s.x.usage(&ans)
			s.x.cached(s.a)
		}
	}
}

// Read returns events as they come. io.EOF only follows the route's terminal event.
func (s *stream) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.x.panicked(v)
			n, err = s.give(p)
		}
	}()
	for s.ready == len(s.out) {
		if s.err != nil {
			return 0, s.err
		}
		s.out, s.ready = s.out[:0], 0
		s.fill()
	}
	return s.give(p)
}

func (s *stream) give(p []byte) (int, error) {
	if s.ready == len(s.out) {
		return 0, s.err
	}
	if s.seen {
		s.x.settled()
	}
	s.sign()
	n := copy(p, s.out[s.ready:])
	s.ready += n
	return n, nil
}

// begin has the stream know the client's connection.
func (s *stream) begin(conn net.Conn) {
	s.conn = conn
	s.sign()
}

// sign bounds the write that follows. A deadline is good for half its time, so that it is not set for every event.
func (s *stream) sign() {
	if s.conn == nil {
		return
	}
	limit := s.x.s.cfg.Timeouts.Write
	if now := time.Now(); now.Sub(s.signed) > limit/2 {
		s.signed = now
		_ = s.conn.SetWriteDeadline(now.Add(limit))
	}
}

// fill waits for more events, or for the end.
func (s *stream) fill() {
	x := s.x
	switch {
	case x.d.state == stContinuing:
		s.awaitOnward()
		return
	case s.wrong != whyNone:
		x.r.sawStream(&s.a.decode, s.wrong)
		s.broke()
		return
	}
	if s.seen {
		x.r.sawStream(&s.a.decode, whyNone)
		s.a.decode.wake(time.Time{})
		// The rest is the end of the body, which lets the connection be used again.
		s.within(time.Second)
		if n, err := s.a.decode.resp.Read(s.buf); n != 0 || !errors.Is(err, io.EOF) {
			s.a.decode.cut(errEnded)
		}
		s.timer.Stop()
		s.err = io.EOF
		return
	}
	for !x.block(&s.a.decode.leash) { // mail that comes behind this interrupts the read
		if s.mail(); s.err != nil {
			return
		}
	}
	if !s.silent {
		s.within(x.s.cfg.Timeouts.Stream)
	}
	s.wakeUp()
	n, err := s.a.decode.resp.Read(s.buf)
	if s.silent = err != nil && errors.Is(err, os.ErrDeadlineExceeded) && s.a.decode.why() == nil; s.silent {
		err = nil
		s.keepAlive()
	} else {
		s.timer.Stop()
	}
	if x.unblock() {
		if s.mail(); s.err != nil {
			return
		}
	}
	if n > 0 {
		if s.frames.Push(s.buf[:n]) != nil {
			s.wrong = whyBadUpstream
		}
		for s.next() {
		}
	}
	if err != nil && !s.seen && s.wrong == whyNone {
		s.wrong = whyStreamCut
	}
}

// within ends the leg if the read that follows takes longer than d.
func (s *stream) within(d time.Duration) {
	if s.timer == nil {
		s.timer = s.a.decode.later(d, errLegLate)
	} else {
		s.timer.Reset(d)
	}
}

// mail has the dispatch take what others posted.
func (s *stream) mail() {
	x := s.x
	for x.d.state == stRelaying || x.d.state == stContinuing {
		x.mu.Lock()
		m, ok := x.mailLocked()
		x.mu.Unlock()
		if !ok {
			return
		}
		if m.e.kind == evDecodeFirst {
			x.stepOnward(s.join(m))
		} else {
			x.stepOnward(x.took(m))
		}
	}
	if s.err == nil {
		s.err = errCut
	}
}

// cut ends the stream with an error event. An engine's own error event that is already there stays the last.
func (s *stream) cut(e *httpError) {
	if !s.told {
		s.out = s.x.b.shape.appendErrorEvent(s.out, e, s.events)
	}
	s.err = errCut
}

// CloseWithError tells how the stream ended: nil only if the client got every byte.
func (s *stream) CloseWithError(err error) error {
	x := s.x
	if x.d.state == stRelaying || x.d.state == stContinuing {
		switch {
		case err == nil:
			x.step(event{kind: evStreamWhole})
		case errors.Is(err, os.ErrDeadlineExceeded):
			x.step(event{kind: evClientSlow, why: whySlowClient})
		default:
			x.step(event{kind: evClientLeft, why: whyClientLeft})
		}
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.a.decode.unjudged()
	s.free()
	if s.conn != nil {
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
	return nil
}
