package leg

import (
	"bytes"
	"errors"
	"net"
	"syscall"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// Observe learns from a request's leg what its engine is like. It is called once per leg that was asked, when its answer is here
// or will not come; of a stream, when its first event is.
func (l *Leg) Observe(f *fleet.Fleet, v Result) {
	l.observeReach(f, v)
	e, now := l.Engine, time.Now()
	switch l.faultOf(v) {
	case faultNone:
		if openai.IsEventStream(l.ContentType) {
			f.Succeeded(e, health.AnswerFailed, now)
		} else {
			f.AnsweredWhole(e, now)
		}
	case faultOverload:
		f.Overloaded(e, now, l.RetryAfter)
	case faultEngine:
		f.Failed(e, health.AnswerFailed, now)
	}
}

// ObserveProbe learns from a handshake's leg what its engine is like. A failure may be the peer's: the pair's pause is enough.
func (l *Leg) ObserveProbe(f *fleet.Fleet, v Result) {
	l.observeReach(f, v)
	if v == Usable {
		f.Succeeded(l.Engine, health.AnswerFailed, time.Now())
	}
}

// observeReach learns whether the engine takes connections.
func (l *Leg) observeReach(f *fleet.Fleet, v Result) {
	e := l.Engine
	switch {
	case l.Status != 0:
		e.Reached()
		e.Progressed()
	case v == Refused && !ourOwn(l.Failure):
		down := false
		var late net.Error
		switch {
		case upstream.RefusesConnections(l.Failure):
			down = e.Refused()
		case errors.As(l.Failure, &late) && late.Timeout():
			dialTimeout, _ := e.Upstream.Limits()
			down = e.Silent(time.Now(), dialTimeout)
		default:
			down = e.Missed()
		}
		f.WentDown(e, down)
	}
}

// ObserveStream learns how a stream that had begun has ended, as far as that is the engine's doing: why is None if its
// terminal event came. It is called before the leg is ended.
func (l *Leg) ObserveStream(f *fleet.Fleet, why reason.Reason) {
	switch {
	case why == reason.AnswerTooLarge:
	case why == reason.None:
		f.Succeeded(l.Engine, health.StreamFailed, time.Now())
	case l.Cause() == nil, errors.Is(l.Cause(), ErrLate):
		f.Failed(l.Engine, health.StreamFailed, time.Now())
	}
}

// ObserveHandOff learns from a prefill leg with an answer of 200, which the connector takes for k, whether its engine hands off on this
// route. An answer that ended for a reason of its own, such as a stop token, says nothing: stock engines hand off only what was cut at the
// limit.
func (l *Leg) ObserveHandOff(f *fleet.Fleet, conn connector.Connector, sh openai.Shape, k dispatch.EventKind) {
	switch {
	case conn.Traits().Stock == nil:
	case k == dispatch.EvPrefillUsable:
		l.Engine.HandOff.Handed(sh)
	case k == dispatch.EvPrefillUnusable, k == dispatch.EvPrefillBare && EndedAtLimit(l.Body):
		f.HandedNothing(l.Engine, sh, time.Now())
	}
}

// Transferred says whether the decode leg of a split request shows how its transfer has ended, and whether that was well. Either engine
// may be at fault for a transfer that fails: with others both go on.
func (l *Leg) Transferred(v Result) (known, good bool) {
	good = v == Usable
	return good || l.Answer.ErrorCode == CodeTransferFailed || errors.Is(l.Cause(), ErrTransferLate) || v == Broken && l.faultOf(v) == faultEngine, good
}

// ourOwn reports whether there is no connection because this process can have no more.
func ourOwn(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// faulty says whose fault a leg's end is.
type faulty uint8

const (
	faultNone     faulty = iota
	faultUnknown         // nothing is known of the engine by it: the request's own, the client's, a peer's, ours
	faultOverload        // the engine has too much to do
	faultEngine          // it is broken
)

// faultOf says whose fault the end of a leg is.
func (l *Leg) faultOf(v Result) faulty {
	busy := l.Status == 503 || l.Status == 429
	switch v {
	case Usable:
		return faultNone
	case Rejected, TooLarge:
		return faultUnknown
	case Refused: // connections are for reach, tickets are ours
		if busy {
			return faultOverload
		}
		return faultUnknown
	case Broken:
		if l.Answer.ErrorCode == CodeTransferFailed || l.Status == 501 { // 501 is what this engine cannot, not what it does wrong
			return faultUnknown
		}
	case Lost:
		if busy {
			return faultOverload
		}
		if l.Cause() != nil {
			return faultUnknown
		}
	case Late:
		if why := l.Cause(); errors.Is(why, ErrTransferLate) || errors.Is(why, ErrHurried) {
			return faultUnknown
		}
	}
	return faultEngine
}

// EndedAtLimit reports whether an answer of one token ended at its limit. In a JSON string these bytes would have backslashes.
func EndedAtLimit(answer []byte) bool {
	for _, end := range []string{`"finish_reason":"length"`, `"stop_reason":"max_tokens"`, `"status":"incomplete"`} {
		if bytes.Contains(answer, []byte(end)) {
			return true
		}
	}
	return false
}
