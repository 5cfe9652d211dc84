package router

import (
	"bytes"
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
	a       *attempt // whose answer it is
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

func newStream(x *exchange, a *attempt) *stream {
	return &stream{a: a, shape: x.b.Shape, max: x.s.cfg.Limits.Event, pool: &x.r.rooms, usage: &x.usage}
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
	early, s.begins, v = s.a.decode.First(s, sh)
	s.out = append(s.out, early...)
	return v
}

// open takes what was read up to now. It reports false, and frees all, if the client may not have it.
func (s *stream) open(o *onward) bool {
	s.onward, s.events, s.usage.pieces = o, s.a.decode.Early, 0
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
	s.a, s.wrong = next.a, reason.None
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
func (s *stream) fail(why reason.Reason, err error) { s.wrong, s.a.decode.Failure = why, err }

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
		s.a.decode.SetError(event)
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
	if s.out, ok = answer.StripEvent(s.out, event); ok && s.a.split && answer.HasCached(s.out[at:]) {
		cached, created := s.a.cached()
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
			s.usage.of(&ans, s.a)
		}
	}
}

// unread returns what the client has not got, until more is taken.
func (s *stream) unread() []byte { return s.out[s.ready:] }

// cut ends the stream with an error event. An engine's own error event that is already there stays the last.
func (s *stream) cut(e *openai.Error) {
	if !s.told {
		s.out = s.shape.AppendErrorEvent(s.out, e, s.events)
	}
	s.err = errCut
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

// of takes the counts of an answer of the attempt. Cached tokens are prefill's: decode's own count has the hand-off.
func (u *usage) of(ans *answer.Answer, a *attempt) {
	if ans.HasUsage {
		u.counted, u.prompt, u.output, u.cached = true, ans.PromptTokens, ans.CompletionTokens, ans.CachedTokens
	}
	if a.split {
		u.cached, _ = a.cached()
	}
}

var usageKey = []byte(`"usage"`)

// hasUsage reports whether an event may carry usage: a cheap test before its data is parsed.
func hasUsage(event []byte) bool { return bytes.Contains(event, usageKey) }
