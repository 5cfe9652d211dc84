package router

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

// stream makes what the client gets of decode's events, one whole event after the other. It belongs to the goroutine that asks decode up
// to the first event of the answer, and from then on to the owner of the exchange. It does no I/O, and holds buffers only while something
// is in them.
type stream struct {
	leg     *leg.Leg     // whose answer it is
	cached  cachedTokens // of the prompt; nil if decode's own count is right
	shape   openai.Shape
	max     int        // bytes that one event may have
	pool    *sync.Pool // of *streamBuffers
	buffers *streamBuffers
	frames  *sse.Frames
	usage   *usage
	onward  *onward // what another engine would need to go on, and what is added to its answer; nil if none may
	begins  []byte  // the first event of the answer, until the owner has it; lies in frames
	out     []byte  // whole events that the client has not got
	ready   int     // of out, the bytes that were read
	seen    bool    // the terminal event was taken
	wrong   reason.Reason
	told    bool  // the engine's own error event is the last of out
	events  int   // that were taken, comments too
	err     error // how it has ended, once out is read; io.EOF if the client has the terminal event
}

// cachedTokens says how many tokens of the prompt prefill had cached, and how many it has cached for this request, below 0 if that is not
// known. Decode's own count has the hand-off.
type cachedTokens interface{ Cached() (cached, created int) }

// streams makes streams. The zero value is ready.
type streams struct{ buffers sync.Pool } // of *streamBuffers

// begin returns the stream of a leg's answer, of events of at most max bytes. What is known of its tokens goes to u.
func (p *streams) begin(l *leg.Leg, cached cachedTokens, sh openai.Shape, max int, u *usage) *stream {
	return &stream{leg: l, cached: cached, shape: sh, max: max, pool: &p.buffers, usage: u}
}

// Enter takes buffers, unless there are some, and returns what cuts bytes into events.
func (s *stream) Enter() *sse.Frames {
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

// free gives the buffers back, whatever is in them.
func (s *stream) free() {
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

// first reads up to the first event of an answer. sh is the shape that the engine was asked for.
func (s *stream) first(sh openai.Shape) (v leg.Result) {
	var early []byte
	early, s.begins, v = s.leg.First(s, sh)
	s.out = append(s.out, early...)
	return v
}

// open takes what was read up to now. It reports false, and frees all, if the client may not have it.
func (s *stream) open(o *onward) bool {
	s.onward, s.events, s.usage.pieces = o, s.leg.Early, 0
	if !s.relay(s.begins) {
		s.free()
		return false
	}
	s.begins = nil
	s.relayAll()
	return true
}

// resume goes on with the stream of another engine. It reports false if the client cannot have what that says.
func (s *stream) resume(next *stream) bool {
	s.leg, s.cached, s.wrong = next.leg, next.cached, reason.None
	s.buffers, next.buffers = next.buffers, s.buffers
	s.frames, next.frames = next.frames, nil
	next.free()
	s.onward.joined = true
	if !s.relay(next.begins) {
		return false
	}
	s.relayAll()
	return true
}

// push takes bytes from decode.
func (s *stream) push(b []byte) {
	if err := s.Enter().Push(b); err != nil {
		s.fail(reason.AnswerTooLarge, err)
	}
	s.relayAll()
}

// fail notes that nothing more comes from decode, but for the whole events that are here.
func (s *stream) fail(why reason.Reason, err error) { s.wrong, s.leg.Failure = why, err }

// ends reports whether nothing more is to be read from decode.
func (s *stream) ends() bool { return s.seen || s.wrong != reason.None }

// relayAll takes all whole events that are here and that the client may have.
func (s *stream) relayAll() {
	for !s.ends() && s.frames != nil {
		event, ok := s.frames.Next()
		if !ok || !s.relay(event) {
			return
		}
	}
}

// relay takes one whole event if the client may have it.
func (s *stream) relay(event []byte) bool {
	if s.onward != nil && s.onward.joined {
		return s.relayOnward(event)
	}
	switch s.shape.KindOf(event) {
	case openai.EventDone:
		s.seen = true
		s.events++
		s.count(event)
	case openai.EventError:
		s.wrong = reason.DecodeFailed
		s.leg.SetError(event)
		if s.onward == nil {
			s.told = s.take(event)
		}
		return false
	case openai.EventData:
		s.usage.pieces++
		s.events++
		s.count(event)
		if s.onward != nil {
			event = s.onward.note(event)
		}
	}
	if !s.take(event) {
		s.wrong = reason.BadUpstream
		return false
	}
	return true
}

// take appends a whole event to what the client gets, without the engines' hand-off, and with prefill's count of cached tokens.
func (s *stream) take(event []byte) (ok bool) {
	at := len(s.out)
	if s.out, ok = answer.StripEvent(s.out, event); ok && s.cached != nil && answer.HasCached(s.out[at:]) {
		cached, created := s.cached.Cached()
		s.out = answer.SetCached(s.out, at, cached, created)
	}
	return ok
}

// count reads the usage of the event that has it.
func (s *stream) count(event []byte) {
	if !hasUsage(event) {
		return
	}
	if p, ok := sse.Data(event); ok {
		if ans, ok := answer.Parse(p); ok {
			s.usage.of(&ans, s.cached)
		}
	}
}

// empty reports whether the client has got all events that are here.
func (s *stream) empty() bool { return s.ready == len(s.out) }

// read copies events to p, and returns how many bytes.
func (s *stream) read(p []byte) int {
	n := copy(p, s.out[s.ready:])
	s.ready += n
	return n
}

// drain returns all events that the client has not got, valid until more are taken.
func (s *stream) drain() []byte {
	events := s.out[s.ready:]
	s.ready = len(s.out)
	return events
}

// reuse makes room for events, as the client has got all that are here.
func (s *stream) reuse() { s.out, s.ready = s.out[:0], 0 }

// hasBuffers reports whether something is in them, or may be.
func (s *stream) hasBuffers() bool { return s.buffers != nil }

// freeIfEmpty gives the buffers back if nothing is in them.
func (s *stream) freeIfEmpty() {
	if s.frames != nil && s.frames.Empty() {
		s.free()
	}
}

// ended is how the stream has ended, nil if it has not; io.EOF if the client has the terminal event.
func (s *stream) ended() error { return s.err }

// abort ends the stream where it is, unless it has ended.
func (s *stream) abort() {
	if s.err == nil {
		s.err = errCut
	}
}

// whole reports whether the terminal event was taken.
func (s *stream) whole() bool { return s.seen }

// failed says why nothing more comes from decode before the terminal event; reason.None if it may.
func (s *stream) failed() reason.Reason { return s.wrong }

// cut ends the stream with an error event. An engine's own error event that is already there stays the last.
func (s *stream) cut(e *openai.Error) {
	if !s.told {
		s.out = s.shape.AppendErrorEvent(s.out, e, s.events)
	}
	s.err = errCut
}

// ending is what can be made of a stream that has failed.
type ending uint8

const (
	endingCut      ending = iota
	endingContinue        // another engine can go on with it
	endingWhole           // the client has all of it but the end
)

// ending says what can be made of a stream that has failed. Of one that is cut for the lack of a continuation why is what is told of that.
func (s *stream) ending() (e ending, why string) {
	switch o := s.onward; {
	case o == nil:
		return endingCut, ""
	case !o.able(), s.wrong == reason.AnswerTooLarge:
		return endingCut, "unsupported"
	case o.finished || o.max >= 0 && o.nSent >= o.max:
		return endingWhole, ""
	}
	return endingContinue, ""
}

// end ends the stream after its terminal event.
func (s *stream) end() { s.err = io.EOF }

// usage is what is known of the tokens of a request.
type usage struct {
	counted bool // the engine has counted them
	pieces  int  // events with data that were relayed, a token each or more
	prompt  int
	output  int
	cached  int // of the prompt
}

// of takes the counts of an answer.
func (u *usage) of(ans *answer.Answer, cached cachedTokens) {
	if ans.HasUsage {
		u.counted, u.prompt, u.output, u.cached = true, ans.PromptTokens, ans.CompletionTokens, ans.CachedTokens
	}
	if cached != nil {
		u.cached, _ = cached.Cached()
	}
}

var usageKey = []byte(`"usage"`)

// hasUsage reports whether an event may carry usage: a cheap test before its data is parsed.
func hasUsage(event []byte) bool { return bytes.Contains(event, usageKey) }

// keepAliveEvent is a comment: clients skip it, and whatever stands in between sees that the stream lives.
const keepAliveEvent = ": keep-alive\n\n"

// keepAlive tells the client that the stream lives. What is relayed is whole events, so it comes between two.
func (s *stream) keepAlive() { s.out = append(s.out, keepAliveEvent...) }

// errCut ends a client's connection after an error event, so that no client takes a part for the whole.
var errCut = errors.New("the answer was cut")
