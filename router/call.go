package router

import (
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

// call is one leg as I/O: one request to one engine within an attempt. Its fields are written by the goroutine that asks; others may
// cancel it at any time.
type call struct {
	upstream.Canceler
	engine *fleet.Engine
	leave  func() bool        // stops following a context; nil if it follows none
	resp   *upstream.Response // decode, while a stream is read

	status int
	ctype  string
	body   []byte // a whole answer; for a stream the bytes that were read before the gate
	ans    answer.Answer
	early  int           // events of a stream before the first of its answer
	judged bool          // its engine was given the client's credentials, not the router's
	either bool          // its engine says of a failed transfer that its peer may be at fault (connector sglang)
	err    error         // why it failed, for the log
	rest   time.Duration // the engine has asked for no more requests before; 0 if it has not

	unread atomic.Int64 // tokens of the prompt that count with the engine; see reading

	streams bool // it has brought tokens, and is a stream

	noticed bool           // its engine has shown that it knows that the leg is over
	outcome atomic.Uint32  // a dispatch.LegState; see became
	kv      atomic.Uint32  // a kvState
	asking  sync.WaitGroup // the goroutine that asks
	once    sync.Once
}

// state is what became of the leg so far. Once it is over its other fields do not change any more but by whoever ends it.
func (l *call) state() dispatch.LegState { return dispatch.LegState(l.outcome.Load()) }

// begin notes that the leg is being asked, by a goroutine that will call became.
func (l *call) begin() {
	l.asking.Add(1)
	l.outcome.Store(uint32(dispatch.LegAsked))
}

// became notes how the leg has ended, or that its stream has begun.
func (l *call) became(s dispatch.LegState) {
	l.outcome.Store(uint32(s))
	l.asking.Done()
}

// tookAll reports whether a decode leg has tokens, and so all that prefill held for it.
func (l *call) tookAll() bool {
	s := l.state()
	return s == dispatch.LegAnswered || s == dispatch.LegWhole
}

// sent waits until a leg that was canceled is over, and reports whether a byte of it may have left.
func (l *call) sent() bool {
	l.asking.Wait()
	return !l.unsent()
}

// kvState is what is known of the KV that a decode leg needs from prefill.
type kvState uint32

const (
	kvUnknown  kvState = iota
	kvOverdue          // it should have come
	kvSupplied         // a look has shown that decode has it; an answer that is not streamed does not tell
	kvOver             // the leg has brought tokens, or is over
)

// kvBecomes notes what is known of the leg's KV, and counts the leg with its engine under that. It reports false if the leg is over.
func (l *call) kvBecomes(to kvState) bool {
	for {
		was := kvState(l.kv.Load())
		switch {
		case was == kvOver:
			return false
		case was == to, was == kvSupplied && to == kvOverdue:
			return true
		}
		if l.kv.CompareAndSwap(uint32(was), uint32(to)) {
			countKV(l.engine, was, -1)
			countKV(l.engine, to, 1)
			return true
		}
	}
}

// countKV counts a leg of which that is known of its KV.
func countKV(e *fleet.Engine, s kvState, by int64) {
	switch s {
	case kvOverdue:
		e.Overdue.Add(by)
	case kvSupplied:
		e.Supplied.Add(by)
	}
}

// open takes the engine's count for a leg that ends with a context.
func (l *call) open(parent context.Context, e *fleet.Engine) {
	l.engine = e
	e.InFlight.Add(1)
	if parent.Err() != nil {
		l.Cancel(context.Cause(parent))
		return
	}
	l.leave = context.AfterFunc(parent, func() { l.Cancel(context.Cause(parent)) })
}

// join takes the engine's count for a leg of a request. It may outlive the request, but not the set.
func (l *call) join(s *upstream.CancelSet, e *fleet.Engine) {
	l.engine = e
	e.InFlight.Add(1)
	l.reading()
	s.Add(&l.Canceler)
}

// end gives back the connection and the engine's count. It is safe to call twice, but not while the leg is asked.
func (l *call) end() {
	l.once.Do(func() {
		if l.resp != nil {
			l.resp.Close()
		}
		if l.leave != nil {
			l.leave()
		}
		l.Remove()
		l.Cancel(errEnded)
		l.hasRead()
		if l.streams {
			l.engine.Streaming.Add(-1)
		}
		l.engine.InFlight.Add(-1)
	})
}

// header appends the fields of one leg.
func (l *call) header(dst []upstream.Field, request string, f *forwarded, stream bool) []upstream.Field {
	l.judged = f != nil && f.judged
	dst = append(dst, l.engine.Header...)
	dst = append(dst, upstream.Field{Name: "X-Request-Id", Value: request})
	if stream {
		dst = append(dst, upstream.Field{Name: "Accept", Value: "text/event-stream"})
	} else {
		dst = append(dst, upstream.Field{Name: "Accept", Value: "application/json"})
	}
	return f.fields(dst)
}

// unsent reports that the leg has failed before a byte of it has left.
func (l *call) unsent() bool {
	var up *upstream.Error
	return errors.As(l.err, &up) && up.Phase == upstream.PhaseDial
}

// verdict is what an engine's behaviour means, for either leg.
type verdict uint8

const (
	vUsable   verdict = iota // 200
	vRefused                 // nothing was begun
	vRejected                // the request's own fault
	vBroken                  // an error of the engine
	vGarbage                 // an answer that is none
	vLost                    // the connection broke
	vLate                    // ended by the leg's own time
	vTooLarge                // 200, and an answer that exceeds a bound of the gateway's own: no fault of the engine's
)

// send asks and reads the head. With vUsable resp is open.
func (l *call) send(req *upstream.Request, max int) verdict {
	resp, err := l.engine.Upstream.Do(&l.Canceler, req)
	if err != nil {
		return l.failed(err)
	}
	l.resp, l.status, l.ctype = resp, resp.Status, resp.ContentType
	if resp.Status == 200 {
		return vUsable
	}
	l.rest = resp.RetryAfter
	l.body, err = resp.ReadAll(nil, max)
	if errors.Is(err, upstream.ErrTooLarge) || err != nil && resp.Early && l.Cause() == nil { // the status says enough
		l.body, l.err = nil, err
	} else if err != nil {
		return l.failed(err)
	}
	l.ans, _ = answer.Parse(l.body)
	switch {
	case l.ans.ErrorCode == codeTransferFailed:
		return vBroken
	case l.ans.ErrorCode == codeTicket && l.status == 403 && !resp.Resent: // it knows another gateway's key, or none yet
		return vRefused
	case l.status == 503 || l.status == 429:
		if resp.Resent { // this one was not begun; the one before it may have been
			return vLost
		}
		return vRefused
	case (l.status == 401 || l.status == 403) && !l.judged: // the router's credential, not the client's
		return vBroken
	case l.status >= 400 && l.status < 500, l.status == http.StatusNotImplemented: // and of that engine's every sibling
		return vRejected
	case l.status >= 500:
		return vBroken
	}
	return vGarbage
}

// codeTicket is the code of an answer of an engine that does not accept the leg's ticket: it has begun nothing, and as it
// publishes its records anew it learns the key (connector kvplane).
const codeTicket = "ticket"

// codeTransferFailed is the code of an answer whose KV did not come (connector kvplane).
const codeTransferFailed = "transfer_failed"

// failed classifies an error of the connection.
func (l *call) failed(err error) verdict {
	l.err = err
	switch cause := l.Cause(); {
	case cause == nil:
	case errors.Is(cause, errLegLate), errors.Is(cause, errTransferLate), errors.Is(cause, errHurried):
		return vLate
	default:
		return vLost
	}
	var up *upstream.Error
	switch {
	case isTooLarge(err):
		return vTooLarge
	case errors.Is(err, upstream.ErrBadResponse):
		return vGarbage
	case errors.As(err, &up) && up.Phase == upstream.PhaseDial:
		return vRefused
	}
	return vLost
}

// askWhole asks, and reads an answer that is not streamed.
func (l *call) askWhole(req *upstream.Request, max int) verdict {
	v := l.send(req, max)
	if v == vUsable {
		v = l.whole(max)
	}
	return v
}

// whole reads a 200 answer that is not streamed.
func (l *call) whole(max int) verdict {
	var err error
	if l.body, err = l.resp.ReadAll(l.body[:0], max); err != nil {
		return l.failed(err)
	}
	var ok bool
	if l.ans, ok = answer.Parse(l.body); !ok {
		return vGarbage
	}
	if l.ans.Failed {
		return vBroken
	}
	return vUsable
}

// eventBuffer has the frames that a stream is cut into events by. enter makes them ready for more bytes.
type eventBuffer interface {
	enter() *sse.Frames
}

// first reads a stream to the first event of an answer, and returns what came before it, for the client, and the event, which
// lies in the buffer's frames as does what came after it. What came before is kept until the answer begins: comments are not, and
// other events are at most as much as one event may be.
func (l *call) first(buffer eventBuffer, sh openai.Shape) (early, event []byte, v verdict) {
	if !strings.HasPrefix(l.ctype, "text/event-stream") {
		return nil, nil, vGarbage
	}
	for {
		b, err := l.resp.Take()
		if len(b) == 0 && err == nil {
			err = l.resp.Await()
		}
		if len(b) > 0 {
			frames := buffer.enter()
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
					return early, event, vUsable
				case kind == openai.EventError:
					l.tellError(event)
					return nil, nil, vBroken
				case kind == openai.EventDone: // an answer without one token
					return nil, nil, vGarbage
				}
				if early, ok = answer.StripEvent(early, event); !ok {
					return nil, nil, vGarbage
				}
				if len(early) > frames.Max {
					return nil, nil, l.failed(sse.ErrTooLarge)
				}
				l.early++
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) { // whole by its framing, but no answer
				return nil, nil, vGarbage
			}
			return nil, nil, l.failed(err)
		}
	}
}

// tellError takes over what an error event of the engine says.
func (l *call) tellError(event []byte) {
	if p, ok := sse.Data(event); ok {
		l.ans, _ = answer.Parse(p)
		l.body = append(l.body[:0], p...)
	}
}

// cause says for the log why the leg failed.
func (l *call) cause() string {
	switch {
	case l.err != nil:
		return l.err.Error()
	case l.refusedCredentials():
		return "the engine refused the gateway's credentials"
	case l.ans.ErrorMessage != "":
		return openai.Clip(l.ans.ErrorMessage, 200)
	case l.status != 0 && l.status != 200:
		return fmt.Sprintf("%d %s", l.status, http.StatusText(l.status))
	}
	return fmt.Sprintf("%d bytes of %q that are no answer", len(l.body), openai.Clip(l.ctype, 100)) // never the bytes: logs hold no answers
}

// refusedCredentials reports that the engine does not accept what the gateway shows it.
func (l *call) refusedCredentials() bool {
	return (l.status == http.StatusUnauthorized || l.status == http.StatusForbidden) && l.ans.ErrorCode != codeTicket
}

// later cancels the leg after d, unless it is over: its owner may not know that yet. The caller stops the timer.
func (l *call) later(d time.Duration, cause error) *time.Timer {
	return time.AfterFunc(d, func() {
		if !l.state().Over() {
			l.Cancel(cause)
		}
	})
}

// reading counts the prompt with the engine that the leg is for.
func (l *call) reading() {
	if n := l.unread.Load(); n != 0 {
		l.engine.Backlog.Add(n)
	}
}

// hasRead takes that back: the prompt is computed, or nobody waits for it. It may be called twice.
func (l *call) hasRead() {
	if l.unread.Load() != 0 {
		l.engine.Backlog.Add(-l.unread.Swap(0))
	}
}

// parted reports whether the engine has shown that it knows that the leg is over: by a whole answer, or by ending the connection
// itself. Of a leg that was given up the end may still be on its way when requests that came later have long come to theirs.
func (l *call) parted() bool {
	switch {
	case l.Cause() != nil:
		return false
	case l.err == nil:
		return l.status != 0
	}
	return errors.Is(l.err, io.ErrUnexpectedEOF) || errors.Is(l.err, syscall.ECONNRESET) || errors.Is(l.err, syscall.EPIPE)
}
