package leg

import (
	"errors"
	"fmt"

	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// Result is what an engine's behaviour means, for either leg.
type Result uint8

const (
	Usable          Result = iota // 200
	Refused                       // nothing was begun
	Rejected                      // the request's own fault
	Broken                        // an error of the engine
	InvalidResponse               // not a valid answer
	Lost                          // the connection broke
	Late                          // canceled by one of the leg's own time limits
	TooLarge                      // 200, and an answer above the gateway's own limit: not the engine's fault
)

// codeTicket is the code of an engine's answer that refuses the leg's ticket (connector kvplane). The engine has begun nothing.
const codeTicket = "ticket"

// CodeTransferFailed is the code of an answer whose KV did not come (connector kvplane).
const CodeTransferFailed = "transfer_failed"

// failed classifies an error of the connection.
func (l *Leg) failed(err error) Result {
	l.Failure = err
	switch cause := l.Cause(); {
	case cause == nil:
	case errors.Is(cause, ErrLate), errors.Is(cause, ErrTransferLate), errors.Is(cause, ErrHurried):
		return Late
	default:
		return Lost
	}
	var up *upstream.Error
	switch {
	case IsTooLarge(err):
		return TooLarge
	case errors.Is(err, upstream.ErrBadResponse):
		return InvalidResponse
	case errors.As(err, &up) && up.Phase == upstream.PhaseDial:
		return Refused
	}
	return Lost
}

// events are what a result of each leg means for the dispatch. A usable answer means more: its connector or its kind decides.
var events = [...]struct{ prefill, decode dispatch.Event }{
	Usable:          {dispatch.Event{Kind: dispatch.EvPrefillUsable}, dispatch.Event{Kind: dispatch.EvDecodeWhole}},
	Refused:         {event(dispatch.EvPrefillRefused, reason.EngineRefused), event(dispatch.EvDecodeRefused, reason.EngineRefused)},
	Rejected:        {event(dispatch.EvPrefillRejected, reason.PrefillRejected), event(dispatch.EvDecodeRejected, reason.DecodeRejected)},
	Broken:          {event(dispatch.EvPrefillBroken, reason.PrefillFailed), event(dispatch.EvDecodeBroken, reason.DecodeFailed)},
	InvalidResponse: {event(dispatch.EvPrefillUnusable, reason.BadUpstream), event(dispatch.EvDecodeBroken, reason.BadUpstream)},
	Lost:            {event(dispatch.EvPrefillLost, reason.PrefillFailed), event(dispatch.EvDecodeLost, reason.DecodeFailed)},
	Late:            {event(dispatch.EvPrefillLate, reason.PrefillTimeout), event(dispatch.EvDecodeLate, reason.TransferTimeout)},
	TooLarge:        {event(dispatch.EvPrefillTooLarge, reason.AnswerTooLarge), event(dispatch.EvDecodeTooLarge, reason.AnswerTooLarge)},
}

func event(k dispatch.EventKind, why reason.Reason) dispatch.Event {
	return dispatch.Event{Kind: k, Why: why}
}

// PrefillEvent returns what a prefill engine's result means for the dispatch. The caller asks the connector about a usable answer.
func (v Result) PrefillEvent() dispatch.Event { return events[v].prefill }

// DecodeEvent returns what a decode engine's result means for the dispatch. stream says that the answer is one.
func (v Result) DecodeEvent(stream bool) dispatch.Event {
	if v == Usable && stream {
		return dispatch.Event{Kind: dispatch.EvDecodeFirst}
	}
	return events[v].decode
}

// The causes with which a leg is ended.
var (
	ErrEnded        = errors.New("the gateway no longer needs the leg")
	ErrLate         = errors.New("the leg's time is over")
	ErrTransferLate = errors.New("no token within the transfer's time")
	ErrHurried      = errors.New("the client has left, and the leg had time to start") // so that nothing is known of a transfer
	ErrAtWork       = fmt.Errorf("%w; its engine runs all requests that it has", ErrHurried)
)

// IsTooLarge reports whether an answer was not read because it, or one event of it, exceeds a bound.
func IsTooLarge(err error) bool {
	return errors.Is(err, upstream.ErrTooLarge) || errors.Is(err, sse.ErrTooLarge)
}

// ExceededBound returns the bound that an answer exceeds, and names it. IsTooLarge(err) holds.
func ExceededBound(err error, l config.Limits) (bytes int, name string) {
	switch {
	case errors.Is(err, sse.ErrTooLarge):
		return int(l.Event), fmt.Sprintf("one event of more than %d bytes (limits.event)", l.Event)
	case errors.Is(err, upstream.ErrHeadTooLarge):
		return upstream.MaxHead, fmt.Sprintf("header fields of more than %d bytes", upstream.MaxHead)
	}
	return int(l.Answer), fmt.Sprintf("more than %d bytes (limits.answer)", l.Answer)
}
