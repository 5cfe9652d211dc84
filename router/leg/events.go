package leg

import (
	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// PrefillEvent says what a prefill engine's behaviour means for the dispatch.
func (v Result) PrefillEvent() dispatch.Event {
	switch v {
	case Refused:
		return dispatch.Event{Kind: dispatch.EvPrefillRefused, Why: reason.EngineRefused}
	case Rejected:
		return dispatch.Event{Kind: dispatch.EvPrefillRejected, Why: reason.PrefillRejected}
	case Broken:
		return dispatch.Event{Kind: dispatch.EvPrefillBroken, Why: reason.PrefillFailed}
	case InvalidResponse:
		return dispatch.Event{Kind: dispatch.EvPrefillUnusable, Why: reason.BadUpstream}
	case Late:
		return dispatch.Event{Kind: dispatch.EvPrefillLate, Why: reason.PrefillTimeout}
	case TooLarge:
		return dispatch.Event{Kind: dispatch.EvPrefillTooLarge, Why: reason.AnswerTooLarge}
	}
	return dispatch.Event{Kind: dispatch.EvPrefillLost, Why: reason.PrefillFailed}
}

// DecodeEvent says what a decode engine's behaviour means for the dispatch. stream says that its answer is one.
func (v Result) DecodeEvent(stream bool) dispatch.Event {
	switch v {
	case Usable:
		if stream {
			return dispatch.Event{Kind: dispatch.EvDecodeFirst}
		}
		return dispatch.Event{Kind: dispatch.EvDecodeWhole}
	case Refused:
		return dispatch.Event{Kind: dispatch.EvDecodeRefused, Why: reason.EngineRefused}
	case Rejected:
		return dispatch.Event{Kind: dispatch.EvDecodeRejected, Why: reason.DecodeRejected}
	case Broken:
		return dispatch.Event{Kind: dispatch.EvDecodeBroken, Why: reason.DecodeFailed}
	case InvalidResponse:
		return dispatch.Event{Kind: dispatch.EvDecodeBroken, Why: reason.BadUpstream}
	case Late:
		return dispatch.Event{Kind: dispatch.EvDecodeLate, Why: reason.TransferTimeout}
	case TooLarge:
		return dispatch.Event{Kind: dispatch.EvDecodeTooLarge, Why: reason.AnswerTooLarge}
	}
	return dispatch.Event{Kind: dispatch.EvDecodeLost, Why: reason.DecodeFailed}
}
