package router

import (
	"bytes"
	"crypto/tls"
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
)

// observe learns from a request's leg what its engine is like. It is called once per leg that was asked, when its answer is here
// or will not come; of a stream, when its first event is.
func (l *call) observe(f *fleet.Fleet, v verdict) {
	l.observeReach(f, v)
	e, now := l.engine, time.Now()
	switch l.faultOf(v) {
	case faultNone:
		if openai.IsEventStream(l.ctype) {
			f.Succeeded(e, health.AnswerFailed, now)
		} else {
			f.AnsweredWhole(e, now)
		}
	case faultOverload:
		f.Overloaded(e, now, l.rest)
	case faultEngine:
		f.Failed(e, health.AnswerFailed, now)
	}
}

// observeProbe learns from a handshake's leg what its engine is like. A failure may be the peer's: the pair's pause is enough.
func (l *call) observeProbe(f *fleet.Fleet, v verdict) {
	l.observeReach(f, v)
	if v == vUsable {
		f.Succeeded(l.engine, health.AnswerFailed, time.Now())
	}
}

// observeReach learns whether the engine takes connections.
func (l *call) observeReach(f *fleet.Fleet, v verdict) {
	e := l.engine
	switch {
	case l.status != 0:
		e.Reached()
		e.Progressed()
	case v == vRefused && !ourOwn(l.err):
		down := false
		var late net.Error
		switch {
		case refuses(l.err):
			down = e.Refused()
		case errors.As(l.err, &late) && late.Timeout():
			dialTimeout, _ := e.Upstream.Limits()
			down = e.Silent(time.Now(), dialTimeout)
		default:
			down = e.Missed()
		}
		f.WentDown(e, down)
	}
}

// observeStream learns how a stream that had begun has ended, as far as that is the engine's doing: why is None if its
// terminal event came. It is called before the leg is ended.
func (l *call) observeStream(f *fleet.Fleet, why reason.Reason) {
	switch {
	case why == reason.AnswerTooLarge:
	case why == reason.None:
		f.Succeeded(l.engine, health.StreamFailed, time.Now())
	case l.Cause() == nil, errors.Is(l.Cause(), errLegLate):
		f.Failed(l.engine, health.StreamFailed, time.Now())
	}
}

// observeHandOff learns from a prefill leg with an answer of 200, which the connector takes for k, whether its engine hands off on this
// route. An answer that ended for a reason of its own, such as a stop token, says nothing: stock engines hand off only what was cut at the
// limit.
func (l *call) observeHandOff(f *fleet.Fleet, conn connector.Connector, sh openai.Shape, k dispatch.EventKind) {
	switch {
	case conn.Traits().Stock == nil:
	case k == dispatch.EvPrefillUsable:
		l.engine.HandOff.Handed(sh)
	case k == dispatch.EvPrefillUnusable, k == dispatch.EvPrefillBare && capped(l.body):
		f.HandedNothing(l.engine, sh, time.Now())
	}
}

// transferred says whether the decode leg of a split request shows how its transfer has ended, and whether that was well. Either engine
// may be at fault for a transfer that fails: with others both go on.
func (l *call) transferred(v verdict) (known, good bool) {
	good = v == vUsable
	return good || l.ans.ErrorCode == codeTransferFailed || errors.Is(l.Cause(), errTransferLate) || v == vBroken && l.faultOf(v) == faultEngine, good
}

// refuses reports whether an engine will take no connection as long as it stays as it is: nothing listens, or its certificate is not
// what the configuration wants.
func refuses(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &unverified)
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
func (l *call) faultOf(v verdict) faulty {
	busy := l.status == 503 || l.status == 429
	switch v {
	case vUsable:
		return faultNone
	case vRejected, vTooLarge:
		return faultUnknown
	case vRefused: // connections are for reach, tickets are ours
		if busy {
			return faultOverload
		}
		return faultUnknown
	case vBroken:
		if l.ans.ErrorCode == codeTransferFailed || l.status == 501 { // 501 is what this engine cannot, not what it does wrong
			return faultUnknown
		}
	case vLost:
		if busy {
			return faultOverload
		}
		if l.Cause() != nil {
			return faultUnknown
		}
	case vLate:
		if why := l.Cause(); errors.Is(why, errTransferLate) || errors.Is(why, errHurried) {
			return faultUnknown
		}
	}
	return faultEngine
}

// capped reports whether an answer of one token ended at its limit. In a JSON string these bytes would have backslashes.
func capped(answer []byte) bool {
	for _, end := range []string{`"finish_reason":"length"`, `"stop_reason":"max_tokens"`, `"status":"incomplete"`} {
		if bytes.Contains(answer, []byte(end)) {
			return true
		}
	}
	return false
}
