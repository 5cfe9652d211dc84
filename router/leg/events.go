package leg

import (
	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

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
