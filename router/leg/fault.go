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

// Observe updates the health of the leg's engine. Call it once per leg that was asked: when its answer, or the first event of its stream,
// has arrived or will not come.
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

// ObserveProbe updates the health of the engine by a handshake's leg. A failure does not count, as the peer may be at fault: the pair's
// pause is enough.
func (l *Leg) ObserveProbe(f *fleet.Fleet, v Result) {
	l.observeReach(f, v)
	if v == Usable {
		f.Succeeded(l.Engine, health.AnswerFailed, time.Now())
	}
}

// observeReach notes whether the engine accepts connections.
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

// ObserveStream updates the health of the engine by the end of a stream that had begun. why is None if its terminal event came. Ends that
// the engine did not cause do not count. Call it before the leg is ended.
func (l *Leg) ObserveStream(f *fleet.Fleet, why reason.Reason) {
	switch {
	case why == reason.AnswerTooLarge:
	case why == reason.None:
		f.Succeeded(l.Engine, health.StreamFailed, time.Now())
	case l.Cause() == nil, errors.Is(l.Cause(), ErrLate):
		f.Failed(l.Engine, health.StreamFailed, time.Now())
	}
}

// ObserveHandOff notes whether a prefill engine hands KV off on this route. The leg's answer was 200, and the connector's event for it is k.
// An answer that ended before its token limit, such as at a stop token, does not count: stock engines hand off only at the limit.
func (l *Leg) ObserveHandOff(f *fleet.Fleet, conn connector.Connector, sh openai.Shape, k dispatch.EventKind) {
	switch {
	case conn.Traits().Stock == nil:
	case k == dispatch.EvPrefillUsable:
		l.Engine.HandOff.Handed(sh)
	case k == dispatch.EvPrefillUnusable, k == dispatch.EvPrefillBare && EndedAtLimit(l.Body):
		f.HandedNothing(l.Engine, sh, time.Now())
	}
}

// Transferred reports whether the decode leg of a split request shows how its transfer ended (known), and whether it succeeded (good).
// Either engine may be at fault for a failed transfer, so the pair is counted, not an engine.
func (l *Leg) Transferred(v Result) (known, good bool) {
	good = v == Usable
	return good || l.Answer.ErrorCode == CodeTransferFailed || errors.Is(l.Cause(), ErrTransferLate) || v == Broken && l.faultOf(v) == faultEngine, good
}

// ourOwn reports whether this process has reached a limit of its own, so that it could not connect.
func ourOwn(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// faulty is the side that is at fault for the end of a leg.
type faulty uint8

const (
	faultNone     faulty = iota
	faultUnknown         // it shows nothing about the engine: the request, the client, a peer or the gateway is at fault
	faultOverload        // the engine has too much to do
	faultEngine          // it is broken
)

// faultOf returns the side that is at fault for the end of a leg.
func (l *Leg) faultOf(v Result) faulty {
	busy := l.Status == 503 || l.Status == 429
	switch v {
	case Usable:
		return faultNone
	case Rejected, TooLarge:
		return faultUnknown
	case Refused: // observeReach counts refused connections; a refused ticket is the gateway's
		if busy {
			return faultOverload
		}
		return faultUnknown
	case Broken:
		if l.Answer.ErrorCode == CodeTransferFailed || l.Status == 501 { // 501: the engine lacks a feature, which is no failure
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

// EndedAtLimit reports whether an answer of one token ended at its limit. Inside a JSON string these quotes would be escaped.
func EndedAtLimit(answer []byte) bool {
	for _, end := range []string{`"finish_reason":"length"`, `"stop_reason":"max_tokens"`, `"status":"incomplete"`} {
		if bytes.Contains(answer, []byte(end)) {
			return true
		}
	}
	return false
}
