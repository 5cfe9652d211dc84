package router

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
)

// errCut ends a client's connection behind an error event, so that no client takes a part for the whole.
var errCut = errors.New("the answer was cut")

// streamRoom is the memory of one stream while something of it is here. It is used again.
type streamRoom struct {
	frames sse.Frames
	out    []byte
}

// keptRoom is how many bytes of whole events are kept for the next stream.
const keptRoom = 64 << 10

// stream relays decode's answer event by event. It has WriteTo and CloseWithError, which are called by the goroutine
// that serves the client's connection: the owner of the exchange. While it waits for decode it holds no memory but its own.
type stream struct {
	x      *exchange
	a      *attempt
	room   *streamRoom // holds what frames and out are; nil while nothing is in them
	frames *sse.Frames
	conn   net.Conn  // the client's; nil in tests
	silent bool      // the last wait has ended with nothing
	heard  time.Time // when the first of the waits began that have brought nothing
	woken  time.Time // when the wait is to end; zero if that is not set
	signed time.Time // when conn's write deadline was set

	begins []byte        // the first event of the answer, until the owner has it; lies in frames
	out    []byte        // whole events that the client has not got
	ready  int           // of out, the bytes that were read
	seen   bool          // the terminal event was read
	wrong  reason.Reason // why what follows out is not relayed
	told   bool          // the engine's own error event is the last of out
	events int           // that were taken, comments too
	err    error         // what Read returns once out is empty
}

// relayed is an answer that is sent as it comes. begin has it know the client's connection, before anything else is called.
type relayed interface {
	Read(p []byte) (int, error)
	CloseWithError(err error) error
	begin(conn net.Conn)
}

func newStream(x *exchange, a *attempt) *stream { return &stream{x: x, a: a} }

// enter takes a room, unless there is one.
func (s *stream) enter() {
	if s.room != nil {
		return
	}
	room, ok := s.x.r.rooms.Get().(*streamRoom)
	if !ok {
		room = new(streamRoom)
	}
	room.frames.Reset(s.x.s.cfg.Limits.Event)
	s.room, s.frames = room, &room.frames
	s.out = append(room.out[:0], s.out...)
}

// first reads up to the first event of an answer. It is the leg's: open is the owner's.
func (s *stream) first(sh openai.Shape) (v verdict) {
	var early []byte
	early, s.begins, v = s.a.decode.first(s, sh)
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

// free gives the room back, whatever is in it.
func (s *stream) free() {
	room := s.room
	if room == nil {
		return
	}
	if room.out = s.out; cap(room.out) > keptRoom {
		room.out = nil
	}
	if room.frames.Size() > keptRoom {
		room.frames = sse.Frames{}
	}
	s.room, s.frames, s.out, s.ready = nil, nil, nil, 0
	s.x.r.rooms.Put(room)
}

// take appends a whole event to what the client gets, without the engines' hand-off, and with prefill's count of cached tokens.
func (s *stream) take(event []byte) (ok bool) {
	at := len(s.out)
	if s.out, ok = openai.StripEvent(s.out, event); ok && s.a.split && openai.HasCached(s.out[at:]) {
		cached, created := s.x.prefillCached(s.a)
		s.out = openai.SetCached(s.out, at, cached, created)
	}
	return ok
}

// next takes one whole event, if there is one that the client may have.
func (s *stream) next() bool {
	if s.seen || s.wrong != reason.None || s.frames == nil {
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
	switch s.x.b.Shape.KindOf(event) {
	case openai.EventDone:
		s.seen = true
		s.events++
		s.count(event)
	case openai.EventError:
		s.wrong = reason.DecodeFailed
		s.a.decode.tellError(event)
		if s.x.onward == nil {
			s.told = s.take(event)
		}
		return false
	case openai.EventData:
		s.x.pieces++
		s.events++
		s.count(event)
		if s.x.onward != nil {
			event = s.x.onward.note(event)
		}
	}
	if !s.take(event) {
		s.wrong = reason.BadUpstream
		return false
	}
	return true
}

// count reads the usage of the event that has it.
func (s *stream) count(event []byte) {
	if !hasUsage(event) {
		return
	}
	if p, ok := sse.Data(event); ok {
		if ans, ok := openai.ParseAnswer(p); ok {
			s.x.usage(&ans)
			s.x.cached(s.a)
		}
	}
}

// WriteTo writes events as they come, until the stream ends, well or not.
func (s *stream) WriteTo(w io.Writer) (int64, error) {
	sum := int64(0)
	for {
		events, err := s.give()
		if errors.Is(err, io.EOF) {
			return sum, nil
		} else if err != nil {
			return sum, err
		}
		n, err := w.Write(events)
		if sum += int64(n); err != nil {
			return sum, err
		}
	}
}

// SupportsBodyWriteTo has the server call WriteTo and not Read, for which it would hold a buffer of its own.
func (s *stream) SupportsBodyWriteTo() bool { return true }

// Read is there for whoever knows readers only. It returns events as they come.
func (s *stream) Read(p []byte) (int, error) {
	if err := s.more(); err != nil {
		return 0, err
	}
	n := copy(p, s.out[s.ready:])
	s.ready += n
	return n, nil
}

// give waits for events and returns all that are here, valid until the next call. io.EOF only follows the route's terminal event.
func (s *stream) give() ([]byte, error) {
	if err := s.more(); err != nil {
		return nil, err
	}
	events := s.out[s.ready:]
	s.ready = len(s.out)
	return events, nil
}

// more waits until there is something for the client, or returns how the stream has ended.
func (s *stream) more() (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.x.panicked(v)
			if err = nil; s.ready == len(s.out) {
				err = s.err
			}
		}
	}()
	for s.ready == len(s.out) {
		if s.err != nil {
			return s.err
		}
		s.out, s.ready = s.out[:0], 0
		s.fill()
	}
	if s.seen {
		s.x.settled()
	}
	s.sign()
	return nil
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
	case x.d.State == dispatch.StContinuing:
		s.awaitOnward()
		return
	case s.wrong != reason.None:
		x.r.sawStream(&s.a.decode, s.wrong)
		s.broke()
		return
	}
	if s.seen {
		d := &s.a.decode
		x.r.sawStream(d, reason.None)
		// The rest is the end of the body, which lets the connection be used again.
		if !d.resp.AtEnd(func() { d.SetReadDeadline(time.Now().Add(time.Second)) }) {
			d.Cancel(errEnded)
		}
		d.SetReadDeadline(time.Time{})
		if a, ok := s.conn.(*arrival); ok {
			a.joinNext() // the server writes the last chunk, and then the line that ends the answer
		}
		s.err = io.EOF
		return
	}
	if s.pour() {
		return
	}
	if s.frames != nil && s.frames.Empty() {
		s.free()
	}
	for !x.block(&s.a.decode.Canceler) { // mail that comes behind this interrupts the wait
		if s.mail(); s.err != nil {
			return
		}
	}
	s.wakeUp()
	err := s.a.decode.resp.Await()
	if s.silent = err != nil && errors.Is(err, os.ErrDeadlineExceeded) && s.a.decode.Cause() == nil; s.silent {
		err = s.woke()
	}
	if x.unblock() {
		if s.mail(); s.err != nil {
			return
		}
	}
	if err != nil {
		s.wrong, s.a.decode.err = reason.StreamCut, err
	}
}

// pour takes the events of all that is here. It reports false if that is nothing.
func (s *stream) pour() (some bool) {
	for !s.seen && s.wrong == reason.None {
		b, err := s.a.decode.resp.Take()
		switch {
		case err != nil:
			s.wrong, s.a.decode.err = reason.StreamCut, err
			return true
		case len(b) == 0:
			return some
		}
		some = true
		s.a.decode.engine.progressed()
		s.enter()
		if err := s.frames.Push(b); err != nil {
			s.wrong, s.a.decode.err = reason.AnswerTooLarge, err
		}
		for s.next() {
		}
	}
	return true
}

// mail has the dispatch take what others posted.
func (s *stream) mail() {
	x := s.x
	for x.d.State == dispatch.StRelaying || x.d.State == dispatch.StContinuing {
		x.mu.Lock()
		m, ok := x.mailLocked()
		x.mu.Unlock()
		if !ok {
			return
		}
		if m.e.Kind == dispatch.EvDecodeFirst {
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
func (s *stream) cut(e *openai.Error) {
	if !s.told {
		s.out = s.x.b.Shape.AppendErrorEvent(s.out, e, s.events)
	}
	s.err = errCut
}

// CloseWithError tells how the stream ended: nil only if the client got every byte.
func (s *stream) CloseWithError(err error) error {
	x := s.x
	if x.d.State == dispatch.StRelaying || x.d.State == dispatch.StContinuing {
		switch {
		case err == nil:
			x.step(dispatch.Event{Kind: dispatch.EvStreamWhole})
		case errors.Is(err, os.ErrDeadlineExceeded):
			x.step(dispatch.Event{Kind: dispatch.EvClientSlow, Why: reason.SlowClient})
		default:
			x.step(dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft})
		}
	}
	s.free()
	if s.conn != nil {
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
	return nil
}

var usageKey = []byte(`"usage"`)

// hasUsage reports whether an event may carry usage: a cheap test before its data is parsed.
func hasUsage(event []byte) bool { return bytes.Contains(event, usageKey) }
