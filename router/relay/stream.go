// Package relay makes what a client gets of a streamed answer: whole events, without the engines' hand-off, with prefill's count of cached
// tokens, and, if another engine goes on with the answer, with its events in the shape that the client has had so far. It does no I/O and
// knows no request: package exchange reads from the engine, writes to the client, and decides what a failure means.
package relay

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
)

// streamBuffers is the memory of one stream while something of it is here. It is used again.
type streamBuffers struct {
	frames sse.Frames
	out    []byte
}

// keptBuffer is how many bytes of whole events are kept for the next stream.
const keptBuffer = 64 << 10

// Stream makes what the client gets of decode's events, one whole event after the other. It belongs to the goroutine that asks decode up
// to the first event of the answer, and from then on to the owner of the exchange. It does no I/O, and holds buffers only while something
// is in them.
type Stream struct {
	Leg          *leg.Leg     // whose answer it is
	cached       CachedTokens // of the prompt; nil if decode's own count is right
	shape        openai.Shape
	max          int        // bytes that one event may have
	pool         *sync.Pool // of *streamBuffers
	buffers      *streamBuffers
	frames       *sse.Frames
	usage        *Usage
	continuation *Continuation             // what another engine would need to go on, and what is added to its answer; nil if none may
	Change       func(event []byte) []byte // what the client gets in place of an event of the answer; nil: all as they are
	begins       []byte                    // the first event of the answer, until the owner has it; lies in frames
	out          []byte                    // whole events that the client has not got
	ready        int                       // of out, the bytes that were read
	seen         bool                      // the terminal event was taken
	wrong        reason.Reason
	errorSent    bool  // the engine's own error event is the last of out
	events       int   // that were taken, comments too
	err          error // how it has ended, once out is read; io.EOF if the client has the terminal event
}

// CachedTokens says how many tokens of the prompt prefill had cached, and how many it has cached for this request, below 0 if that is not
// known. Decode's own count has the hand-off.
type CachedTokens interface{ Cached() (cached, created int) }

// Streams makes streams. The zero value is ready.
type Streams struct{ buffers sync.Pool } // of *streamBuffers

// New returns the stream of a leg's answer, of events of at most max bytes. What is known of its tokens goes to u.
func (p *Streams) New(l *leg.Leg, cached CachedTokens, sh openai.Shape, max int, u *Usage) *Stream {
	return &Stream{Leg: l, cached: cached, shape: sh, max: max, pool: &p.buffers, usage: u}
}

// Enter takes buffers, unless there are some, and returns what cuts bytes into events.
func (s *Stream) Enter() *sse.Frames {
	if s.buffers != nil {
		return s.frames
	}
	b, ok := s.pool.Get().(*streamBuffers)
	if !ok {
		b = new(streamBuffers)
	}
	b.frames.Reset(s.max)
	s.buffers, s.frames = b, &b.frames
	s.out = append(b.out[:0], s.out...)
	return s.frames
}

// Free gives the buffers back, whatever is in them.
func (s *Stream) Free() {
	b := s.buffers
	if b == nil {
		return
	}
	if b.out = s.out; cap(b.out) > keptBuffer {
		b.out = nil
	}
	if b.frames.Size() > keptBuffer {
		b.frames = sse.Frames{}
	}
	s.buffers, s.frames, s.out, s.ready = nil, nil, nil, 0
	s.pool.Put(b)
}

// Hold keeps what was read of the answer until the owner has it: the events before its first one, and that, which lies in the frames.
func (s *Stream) Hold(early, first []byte) { s.out, s.begins = append(s.out, early...), first }

// Begin takes what was read up to now. It reports false, and frees all, if the client may not have it.
func (s *Stream) Begin(o *Continuation) bool {
	s.continuation, s.events, s.usage.Pieces = o, int(s.Leg.Early), 0
	if !s.relay(s.begins) {
		s.Free()
		return false
	}
	s.begins = nil
	s.relayAll()
	return true
}

// Resume goes on with the stream of another engine. It reports false if the client cannot have what that says.
func (s *Stream) Resume(next *Stream) bool {
	s.Leg, s.cached, s.wrong = next.Leg, next.cached, reason.None
	s.buffers, next.buffers = next.buffers, s.buffers
	s.frames, next.frames = next.frames, nil
	next.Free()
	s.continuation.resumed = true
	s.continuation.before, s.continuation.made = s.continuation.nSent, 0
	if !s.relay(next.begins) {
		return false
	}
	s.relayAll()
	return true
}

// Take takes bytes from decode.
func (s *Stream) Take(b []byte) {
	if err := s.Enter().Push(b); err != nil {
		s.Fail(reason.AnswerTooLarge, err)
	}
	s.relayAll()
}

// Fail notes that nothing more comes from decode, but for the whole events that are here.
func (s *Stream) Fail(why reason.Reason, err error) { s.wrong, s.Leg.Failure = why, err }

// NeedsMore reports whether the stream needs more from decode: the terminal event was not taken, and nothing has failed.
func (s *Stream) NeedsMore() bool { return !s.seen && s.wrong == reason.None }

// relayAll takes all whole events that are here and that the client may have.
func (s *Stream) relayAll() {
	for s.NeedsMore() && s.frames != nil {
		event, ok := s.frames.Next()
		if !ok || !s.relay(event) {
			return
		}
	}
}

// relay takes one whole event if the client may have it.
func (s *Stream) relay(event []byte) bool {
	if s.continuation != nil && s.continuation.resumed {
		return s.relayContinued(event)
	}
	switch s.shape.KindOf(event) {
	case openai.EventDone:
		s.seen = true
		s.events++
		s.count(event)
	case openai.EventError:
		s.wrong = reason.DecodeFailed
		s.Leg.SetError(event)
		if s.continuation == nil {
			s.errorSent = s.append(event)
		}
		return false
	case openai.EventData:
		s.usage.Pieces++
		s.events++
		s.count(event)
		changed := event
		if s.Change != nil {
			changed = s.Change(event)
		}
		if s.continuation != nil {
			changed = s.continuation.note(event)
		}
		event = changed
	}
	if !s.append(event) {
		s.wrong = reason.BadUpstream
		return false
	}
	return true
}

// append appends a whole event to what the client gets, without the engines' hand-off, and with prefill's count of cached tokens.
func (s *Stream) append(event []byte) (ok bool) {
	at := len(s.out)
	if s.out, ok = answer.StripEvent(s.out, event); ok && s.cached != nil && answer.HasCached(s.out[at:]) {
		cached, created := s.cached.Cached()
		s.out = answer.SetCached(s.out, at, cached, created)
	}
	return ok
}

// count reads the usage of the event that has it.
func (s *Stream) count(event []byte) {
	if !hasUsage(event) {
		return
	}
	if p, ok := sse.Data(event); ok {
		if ans, ok := answer.Parse(p); ok {
			s.usage.Of(&ans, s.cached)
		}
	}
}

// Pieces is how many events of the answer were taken.
func (s *Stream) Pieces() int { return s.usage.Pieces }

// Empty reports whether the client has got all events that are here.
func (s *Stream) Empty() bool { return s.ready == len(s.out) }

// Read copies events to p, and returns how many bytes.
func (s *Stream) Read(p []byte) int {
	n := copy(p, s.out[s.ready:])
	s.ready += n
	return n
}

// TakeOut returns all events that the client has not got, valid until more are taken.
func (s *Stream) TakeOut() []byte {
	events := s.out[s.ready:]
	s.ready = len(s.out)
	return events
}

// Reuse makes room for events, as the client has got all that are here.
func (s *Stream) Reuse() { s.out, s.ready = s.out[:0], 0 }

// HasBuffers reports whether something is in them, or may be.
func (s *Stream) HasBuffers() bool { return s.buffers != nil }

// FreeIfEmpty gives the buffers back if nothing is in them.
func (s *Stream) FreeIfEmpty() {
	if s.frames != nil && s.frames.Empty() {
		s.Free()
	}
}

// Err is how the client's stream has ended: nil if it has not, io.EOF after its terminal event, ErrCut before it.
func (s *Stream) Err() error { return s.err }

// Abort ends the client's stream where it is, unless it has ended.
func (s *Stream) Abort() {
	if s.err == nil {
		s.err = ErrCut
	}
}

// Whole reports whether the terminal event was taken.
func (s *Stream) Whole() bool { return s.seen }

// Failed says why nothing more comes from decode before the terminal event; reason.None if it may.
func (s *Stream) Failed() reason.Reason { return s.wrong }

// Cut ends the stream with an error event. An engine's own error event that is already there stays the last.
func (s *Stream) Cut(e *openai.Error) {
	if !s.errorSent {
		s.out = s.shape.AppendErrorEvent(s.out, e, s.events)
	}
	s.err = ErrCut
}

// Remedy is what can be done about a stream that has failed.
type Remedy uint8

const (
	RemedyCut      Remedy = iota
	remedyContinue        // another engine can go on with it
	RemedyEnd             // the client has all but the end, which is appended
)

// Remedy says what can be done about a stream that has failed. If the stream is cut for lack of a continuation, why says so.
func (s *Stream) Remedy() (r Remedy, why string) {
	switch o := s.continuation; {
	case o == nil, !o.goesOn:
		return RemedyCut, ""
	case !o.able(), s.wrong == reason.AnswerTooLarge:
		return RemedyCut, "unsupported"
	case o.finished || o.of.Max >= 0 && o.nSent >= o.of.Max:
		return RemedyEnd, ""
	}
	return remedyContinue, ""
}

// Finish ends the client's stream after its terminal event.
func (s *Stream) Finish() { s.err = io.EOF }

// Usage is what is known of the tokens of a request.
type Usage struct {
	Counted    bool  // the engine has counted them
	SaysCached bool  // and also those that were cached
	Held       int32 // these, as the engine that answers says, with those that another engine handed over
	Pieces     int   // events with data that were relayed, a token each or more
	Prompt     int
	Output     int
	Cached     int // of the prompt
}

// Of takes the counts of an answer.
func (u *Usage) Of(ans *answer.Answer, cached CachedTokens) {
	if ans.HasUsage {
		u.Counted, u.Prompt, u.Output, u.Cached = true, ans.PromptTokens, ans.CompletionTokens, ans.CachedTokens
		u.SaysCached, u.Held = ans.SaysCached(), int32(ans.Cached())
	}
	if cached != nil {
		u.Cached, _ = cached.Cached()
	}
}

var usageKey = []byte(`"usage"`)

// hasUsage reports whether an event may carry usage: a cheap test before its data is parsed.
func hasUsage(event []byte) bool { return bytes.Contains(event, usageKey) }

// KeepAliveEvent is a comment: clients skip it, and proxies in between see that the stream lives.
const KeepAliveEvent = ": keep-alive\n\n"

// KeepAlive sends the client a sign that the stream lives. What is relayed is whole events, so it comes between two.
func (s *Stream) KeepAlive() { s.out = append(s.out, KeepAliveEvent...) }

// ErrCut ends a client's connection before the terminal event, so that no client takes a part for the whole. A client that is there gets an
// error event first.
var ErrCut = errors.New("the answer was cut")
