// Package leg is one upstream request of one attempt: what is sent, what the answer means, which side is at fault for its end, and how
// much of that the log and the client may see. It owns a Leg from its first byte to its last. It does not know the client's request:
// package exchange starts legs, waits for them and ends them.
//
// Read leg.go for a leg from its first byte to its last, request.go for what is sent, result.go for what an answer means to the dispatch,
// fault.go for whose health it changes. message.go says what the log and the client may see of it, forwarded.go what of
// the client engines see.
package leg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/sse"
	"pdrouter/router/upstream"
)

// Leg is one request to one engine. Its fields are written by the goroutine that sends it; others may cancel it, and read State, at any
// time.
type Leg struct {
	upstream.Canceler
	Engine   *fleet.Engine
	unfollow func() bool        // stops following a context; nil if it follows none
	Response *upstream.Response // decode, while a stream is read

	Status      int
	ContentType string
	Body        []byte // a whole answer; of a stream the error event
	Answer      answer.Answer
	Early       int32         // events of a stream before the first of its answer
	judged      bool          // its engine received the client's credentials, not the router's
	BlameBoth   bool          // its engine reported a failed transfer: the peer may be at fault (connector sglang)
	Streams     bool          // it has brought tokens, and is a stream
	EngineKnows bool          // its engine has noticed that the leg is over; see Acknowledged
	Failure     error         // why it failed, for the log
	RetryAfter  time.Duration // the pause that the engine asked for; 0 if it did not

	Unread atomic.Int64 // tokens of the prompt in the engine's Backlog; see PromptRead
	Work   *Work        // its part in what is forecast of its engine; nil if nothing is, and once the leg has ended

	state  atomic.Uint32                // a dispatch.LegState; see Became
	kv     atomic.Uint32                // a KVState
	source atomic.Pointer[fleet.Engine] // of a decode leg, the prefill engine that has or will have its KV; nil once that has come
	asking sync.WaitGroup               // the goroutine that asks
	once   sync.Once
}

// State is the state of the leg. Once the leg is over, only its owner changes its other fields.
func (l *Leg) State() dispatch.LegState { return dispatch.LegState(l.state.Load()) }

// Begin notes that the leg is being asked, by a goroutine that will call Became.
func (l *Leg) Begin() {
	l.asking.Add(1)
	l.state.Store(uint32(dispatch.LegAsked))
}

// Became notes how the leg has ended, or that its stream has begun.
func (l *Leg) Became(s dispatch.LegState) {
	l.state.Store(uint32(s))
	l.asking.Done()
}

// TookAll reports whether a decode leg has tokens, and so all that prefill held for it.
func (l *Leg) TookAll() bool {
	s := l.State()
	return s == dispatch.LegAnswered || s == dispatch.LegWhole
}

// WaitSent waits until a leg that was canceled is over, and reports whether a byte of it may have left.
func (l *Leg) WaitSent() bool {
	l.asking.Wait()
	return !l.Unsent()
}

// KVState is what is known of the KV that a decode leg needs from prefill.
type KVState uint32

const (
	KVUnknown  KVState = iota
	KVOverdue          // it should have come
	KVSupplied         // decode's load has shown that it came; an answer that is not streamed does not show that
	KVDone             // the leg has brought tokens, or is over
)

// SetKV notes what is known of the leg's KV, and counts the leg with its engine under that. It reports false if the leg is over.
func (l *Leg) SetKV(to KVState) bool {
	for {
		was := KVState(l.kv.Load())
		switch {
		case was == KVDone:
			return false
		case was == to, was == KVSupplied && to == KVOverdue:
			return true
		}
		if l.kv.CompareAndSwap(uint32(was), uint32(to)) {
			countKV(l.Engine, was, -1)
			countKV(l.Engine, to, 1)
			if to != KVOverdue {
				l.collected()
			}
			return true
		}
	}
}

// CollectsFrom notes that a decode leg takes KV of a prefill engine, which counts it until the KV has come or the leg is over.
func (l *Leg) CollectsFrom(p *fleet.Engine) {
	p.Uncollected.Add(1)
	l.source.Store(p)
}

// collected notes that nothing of the prefill engine is needed any more. It may be called twice.
func (l *Leg) collected() {
	if p := l.source.Swap(nil); p != nil {
		p.Uncollected.Add(-1)
	}
}

// countKV counts a leg with its engine by the state of its KV.
func countKV(e *fleet.Engine, s KVState, by int64) {
	switch s {
	case KVOverdue:
		e.Overdue.Add(by)
	case KVSupplied:
		e.Supplied.Add(by)
	}
}

// Open takes the engine's count for a leg that ends with a context.
func (l *Leg) Open(parent context.Context, e *fleet.Engine) {
	l.Engine = e
	e.Enter()
	if parent.Err() != nil {
		l.Cancel(context.Cause(parent))
		return
	}
	l.unfollow = context.AfterFunc(parent, func() { l.Cancel(context.Cause(parent)) })
}

// Join takes the engine's count for a leg of a request. It may outlive the request, but not the set.
func (l *Leg) Join(s *upstream.CancelSet, e *fleet.Engine) {
	l.Engine = e
	e.Enter()
	l.reading()
	s.Add(&l.Canceler)
}

// End gives back the connection and the engine's count. It is safe to call twice, but not while the leg is asked.
func (l *Leg) End() {
	l.once.Do(func() {
		if l.Response != nil {
			l.Response.Close()
		}
		if l.unfollow != nil {
			l.unfollow()
		}
		l.Remove()
		l.Cancel(ErrEnded)
		l.PromptRead()
		l.collected()
		l.endWork()
		if l.Streams {
			l.Engine.Streaming.Add(-1)
		}
		l.Engine.InFlight.Add(-1)
	})
}

// Header appends the fields of one leg.
func (l *Leg) Header(dst []upstream.Field, request string, f *Forwarded, stream bool) []upstream.Field {
	l.judged = f != nil && f.Judged
	dst = append(dst, l.Engine.Header...)
	dst = append(dst, upstream.Field{Name: "X-Request-Id", Value: request})
	if stream {
		dst = append(dst, upstream.Field{Name: "Accept", Value: "text/event-stream"})
	} else {
		dst = append(dst, upstream.Field{Name: "Accept", Value: "application/json"})
	}
	return f.fields(dst, l)
}

// Unsent reports that the leg has failed before a byte of it has left.
func (l *Leg) Unsent() bool {
	var up *upstream.Error
	return errors.As(l.Failure, &up) && up.Phase == upstream.PhaseDial
}

// Send sends the request and reads the head of the response, which is open if the status is 200.
func (l *Leg) Send(req *upstream.Request, max int) Result {
	resp, err := l.Engine.Upstream.Do(&l.Canceler, req)
	if err != nil {
		return l.failed(err)
	}
	l.Response, l.Status, l.ContentType = resp, resp.Status, resp.ContentType
	if resp.Status == 200 {
		return Usable
	}
	l.RetryAfter = resp.RetryAfter
	l.Body, err = resp.ReadAll(nil, max)
	if errors.Is(err, upstream.ErrTooLarge) || err != nil && resp.Early && l.Cause() == nil { // the status says enough
		l.Body, l.Failure = nil, err
	} else if err != nil {
		return l.failed(err)
	}
	l.Answer, _ = answer.Parse(l.Body)
	switch {
	case l.Answer.ErrorCode == CodeTransferFailed:
		return Broken
	case l.Answer.ErrorCode == codeTicket && l.Status == 403 && !resp.Resent: // it does not trust this gateway's key, or not yet
		return Refused
	case l.Status == 503 || l.Status == 429:
		if resp.Resent { // this one was not begun; the one before it may have been
			return Lost
		}
		return Refused
	case (l.Status == 401 || l.Status == 403) && !l.judged: // the router's credential, not the client's
		return Broken
	case l.Status == http.StatusNotFound && req.Body != nil && l.Engine.OtherModel(): // it is not what the configuration says
		return Broken
	case l.Status >= 400 && l.Status < 500, l.Status == http.StatusNotImplemented: // and of that engine's every sibling
		return Rejected
	case l.Status >= 500:
		return Broken
	}
	return InvalidResponse
}

// AskWhole asks, and reads an answer that is not streamed.
func (l *Leg) AskWhole(req *upstream.Request, max int) Result {
	v := l.Send(req, max)
	if v == Usable {
		v = l.Whole(max)
	}
	return v
}

// Whole reads a 200 answer that is not streamed.
func (l *Leg) Whole(max int) Result {
	var err error
	if l.Body, err = l.Response.ReadAll(l.Body[:0], max); err != nil {
		return l.failed(err)
	}
	return l.parse()
}

// ReadAnswer reads an answer that is not streamed, and removes the data of the hand-off. With passed, the answer may be of any kind.
func (l *Leg) ReadAnswer(limit int, passed bool) (v Result) {
	if passed {
		v = l.ReadAny(limit)
	} else {
		v = l.Whole(limit)
	}
	if v != Usable || passed && !openai.IsJSON(l.ContentType) && !openai.MayBeJSON(l.Body) {
		return v
	}
	if kv := l.Answer.KVParams; bytes.Contains(kv, []byte(`"remote_block_ids"`)) {
		l.Answer.KVParams = bytes.Clone(kv) // they lie where the body is changed
	} else {
		l.Answer.KVParams = nil // nothing is kept by the engine
	}
	body, ok := answer.Strip(l.Body, &l.Answer)
	if !ok {
		return InvalidResponse
	}
	l.Body = body
	return Usable
}

// eventBuffer holds the frames that split a stream into events. Enter readies them for more bytes.
type eventBuffer interface {
	Enter() *sse.Frames
}

// First reads a stream to the first event of its answer. It returns that event, and the events before it, for the client. The event lies in
// the buffer's frames, followed by the bytes after it. The events before it are kept without comments, and together may be as large as
// one event may be.
func (l *Leg) First(buffer eventBuffer, sh openai.Shape) (early, event []byte, v Result) {
	if !strings.HasPrefix(l.ContentType, "text/event-stream") {
		return nil, nil, InvalidResponse
	}
	for {
		b, err := l.Response.Take()
		if len(b) == 0 && err == nil {
			err = l.Response.Await()
		}
		if len(b) > 0 {
			frames := buffer.Enter()
			if err := frames.Push(b); err != nil {
				return nil, nil, l.failed(err)
			}
			for {
				event, ok := frames.Next()
				if !ok {
					break
				}
				kind := sh.KindOf(event)
				switch {
				case kind == openai.EventComment:
					continue
				case kind == openai.EventData, kind == openai.EventDone && sh.EndsWithAnswer():
					return early, event, Usable
				case kind == openai.EventError:
					l.SetError(event)
					return nil, nil, Broken
				case kind == openai.EventDone: // an answer without one token
					return nil, nil, InvalidResponse
				}
				if early, ok = answer.StripEvent(early, event); !ok {
					return nil, nil, InvalidResponse
				}
				if len(early) > frames.Max {
					return nil, nil, l.failed(sse.ErrTooLarge)
				}
				l.Early++
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) { // whole by its framing, but no answer
				return nil, nil, InvalidResponse
			}
			return nil, nil, l.failed(err)
		}
	}
}

// SetError sets the answer and the body of the leg to an error event of the engine.
func (l *Leg) SetError(event []byte) {
	if p, ok := sse.Data(event); ok {
		l.Answer, _ = answer.Parse(p)
		l.Body = append(l.Body[:0], p...)
	}
}

// Reason returns why the leg failed, for the log.
func (l *Leg) Reason() string {
	switch {
	case l.Failure != nil:
		return l.Failure.Error()
	case l.RefusedCredentials():
		return "the engine refused the gateway's credentials"
	case l.Answer.ErrorMessage != "":
		return openai.Clip(l.Answer.ErrorMessage, 200)
	case l.Status != 0 && l.Status != 200:
		return fmt.Sprintf("%d %s", l.Status, http.StatusText(l.Status))
	}
	return fmt.Sprintf("%d bytes of %q that are no answer", len(l.Body), openai.Clip(l.ContentType, 100)) // never the bytes: logs hold no answers
}

// RefusedCredentials reports that the engine does not accept the credentials it was sent.
func (l *Leg) RefusedCredentials() bool {
	return (l.Status == http.StatusUnauthorized || l.Status == http.StatusForbidden) && l.Answer.ErrorCode != codeTicket
}

// CancelAfter cancels the leg after d, unless it is over by then. The caller stops the timer.
func (l *Leg) CancelAfter(d time.Duration, cause error) *time.Timer {
	return time.AfterFunc(d, func() {
		if !l.State().Resolved() {
			l.Cancel(cause)
		}
	})
}

// reading adds the prompt to its engine's backlog.
func (l *Leg) reading() {
	if n := l.Unread.Load(); n != 0 {
		l.Engine.Backlog.Add(n)
	}
}

// PromptRead removes the prompt from its engine's backlog: it is computed, or no longer needed. It may be called twice.
func (l *Leg) PromptRead() {
	if l.Unread.Load() != 0 {
		l.Engine.Backlog.Add(-l.Unread.Swap(0))
	}
}

// Acknowledged reports whether the engine has noticed that the leg is over: it sent a whole answer, or closed the connection. The end of a
// canceled leg may reach the engine long after later requests have ended.
func (l *Leg) Acknowledged() bool {
	switch {
	case l.Cause() != nil:
		return false
	case l.Failure == nil:
		return l.Status != 0
	}
	return errors.Is(l.Failure, io.ErrUnexpectedEOF) || errors.Is(l.Failure, syscall.ECONNRESET) || errors.Is(l.Failure, syscall.EPIPE)
}
