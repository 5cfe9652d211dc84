package dispatch

import (
	"fmt"
	"slices"

	"pdrouter/router/reason"
)

// State is where a dispatch stands.
type State uint8

const (
	StNew        State = iota // nothing has happened
	StPlanning                // waits for the choice of engines
	StWaiting                 // gives engines time
	StPairing                 // waits for the pair's handshake
	StAwaiting                // at least one leg was sent; the client has received nothing
	StJoining                 // the client has prefill's token; decode was asked for what comes after it
	StRelaying                // the answer is streamed to the client
	StContinuing              // the stream has failed; another engine is chosen or asked to continue it
	StDraining                // there is an outcome, but the legs continue until ending them leaks no KV
	StDone                    // there is an outcome, and no leg is open
)

// Streams reports whether the client gets a stream, and its request has no outcome.
func (s State) Streams() bool { return s == StJoining || s == StRelaying || s == StContinuing }

func (s State) String() string {
	return [...]string{"new", "planning", "waiting", "pairing", "awaiting", "joining", "relaying", "continuing", "draining", "done"}[s]
}

// Mode is how the legs of an attempt follow each other.
type Mode uint8

const (
	Alone    Mode = iota // one leg: decode serves the whole request
	Together             // both legs at once
	InTurn               // decode after prefill has answered
)

func (m Mode) String() string { return [...]string{"alone", "together", "in_turn"}[m] }

// LegState is what is known of one leg of an attempt.
type LegState uint8

const (
	LegIdle      LegState = iota // never asked
	LegAsked                     // asked, no answer
	LegAnswered                  // prefill: it has finished; decode: its first event is here
	LegWhole                     // decode: its whole answer is here
	LegRefused                   // it was certainly not begun: no connection, 429, 503, or a 4xx for token ids
	LegRejected                  // it was certainly not begun, and would never be: any other 4xx
	LegBroken                    // it was begun and has ended with an error of the engine
	LegLost                      // the connection broke or was given up; what the engine did is unknown
	LegMoved                     // prefill finished on another run of the engine than decode's request names
	LegNoHandOff                 // prefill finished, and hands nothing off
)

func (s LegState) String() string {
	return [...]string{"idle", "asked", "answered", "whole", "refused", "rejected", "broken", "lost", "moved", "no_hand_off"}[s]
}

// Resolved reports whether it is known what became of the leg: it has ended, or its stream has begun.
func (s LegState) Resolved() bool { return s > LegAsked }

// Open reports whether a connection of the leg may be waiting for more.
func (s LegState) Open() bool { return s == LegAsked || s == LegAnswered }

// Failed reports whether a prefill leg has ended without a usable answer, and not by the fault of the request.
func (s LegState) Failed() bool {
	return s == LegRefused || s == LegBroken || s == LegLost || s == LegMoved || s == LegNoHandOff
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	EvStart EventKind = iota
	EvPlannedPair
	EvPlannedAlone
	EvPlannedNone
	EvPlannedLater // not now: engines have failed the request and get a pause, or none can take it but one may come back
	EvWaited       // that time is over
	EvPaired
	EvPairFailed
	EvPrefillUsable   // 200 with the params its connector needs
	EvPrefillFirst    // the same, and its token is the first that the client gets
	EvPrefillUnusable // 200 with params that decode could not use: never sent to decode
	EvPrefillBare     // 200 without params: the engine, or this route of it, hands nothing off
	EvPrefillMoved    // 200 from another run of the engine than decode's request names
	EvPrefillRefused  // no connection, 429 or 503
	EvPrefillRejected // any other 4xx: the request's fault, not the engine's
	EvPrefillBroken   // any other 5xx
	EvPrefillLost     // the connection broke
	EvPrefillLate     // its time is over
	EvPrefillNoTokens // a 4xx for asking for the prompt's token ids: nothing was begun, and without them it may be
	EvPrefillTooLarge // its answer exceeds a bound of the gateway's own
	EvDecodeFirst     // 200 and the first event
	EvDecodeWhole     // 200 and the whole answer
	EvDecodeRefused
	EvDecodeRejected
	EvDecodeBroken // any other 5xx, an error as first event, or an answer that is none
	EvDecodeLost
	EvDecodeLate
	EvDecodeNoTokens // a 4xx for the prompt's token ids, as of prefill
	EvDecodeTooLarge // as of prefill; decode had its blocks
	EvStreamWhole    // the route's terminal event was relayed
	EvStreamUnended  // it ended without the terminal event, but the client has everything else
	EvStreamLost     // it ended without the terminal event, or with an error event, and another engine can continue it
	EvStreamCut      // the same, and no engine can continue it
	EvWatchDue       // decode has shown no sign of the transfer yet: time to watch the transfer
	EvCheckDue       // no client waits, and decode has had time to start: time to check its load
	EvTransferLost   // decode has shown no sign of the transfer, and prefill has restarted since its answer or the transfer's time is over
	EvClientLeft
	EvClientSlow
	EvCanceled // the request that this is one choice of is over
	EvDeadline
	EvNoDrain // the request should drain, but too many do
	EvShutdown
	EvPanic
	EventKinds
)

func (k EventKind) String() string {
	return [...]string{
		"start", "planned_pair", "planned_alone", "planned_none", "planned_later", "waited", "paired", "pair_failed",
		"prefill_usable", "prefill_first", "prefill_unusable", "prefill_bare", "prefill_moved", "prefill_refused", "prefill_rejected",
		"prefill_broken", "prefill_lost", "prefill_late", "prefill_no_tokens", "prefill_too_large",
		"decode_first", "decode_whole", "decode_refused", "decode_rejected", "decode_broken", "decode_lost",
		"decode_late", "decode_no_tokens", "decode_too_large", "stream_whole", "stream_unended", "stream_lost", "stream_cut",
		"watch_due", "check_due", "transfer_lost", "client_left", "client_slow", "canceled", "deadline", "no_drain", "shutdown", "panic",
	}[k]
}

// Unbegun reports that an attempt has failed before any engine began to work on it.
func (k EventKind) Unbegun() bool {
	return k == EvPairFailed || k == EvPrefillRefused || k == EvPrefillNoTokens || k == EvDecodeRefused || k == EvDecodeNoTokens
}

func (k EventKind) OfPrefill() bool { return k >= EvPrefillUsable && k <= EvPrefillTooLarge }
func (k EventKind) OfDecode() bool  { return k >= EvDecodeFirst && k <= EvDecodeTooLarge }
func (k EventKind) OfTimer() bool   { return k == EvWatchDue || k == EvCheckDue }
func (k EventKind) Breaks() bool    { return k >= EvStreamUnended && k <= EvStreamCut }

// LegState is the state of the leg that the event is about.
func (k EventKind) LegState() LegState {
	switch k {
	case EvPrefillUsable, EvPrefillFirst, EvDecodeFirst:
		return LegAnswered
	case EvPrefillMoved:
		return LegMoved
	case EvPrefillBare:
		return LegNoHandOff
	case EvDecodeWhole, EvDecodeTooLarge: // nothing of it is left with the engine
		return LegWhole
	case EvPrefillRefused, EvPrefillNoTokens, EvDecodeRefused, EvDecodeNoTokens:
		return LegRefused
	case EvPrefillRejected, EvDecodeRejected:
		return LegRejected
	case EvPrefillUnusable, EvPrefillTooLarge, EvPrefillBroken, EvDecodeBroken:
		return LegBroken
	}
	return LegLost
}

// Event is something that happened to a request. Why is the reason for the client and the log.
type Event struct {
	Kind EventKind
	Why  reason.Reason
}

// ActionKind is what an action wants done. The DoReply actions set the reply and write nothing: the server writes it when the exchange hands
// it over.
type ActionKind uint8

const (
	DoNothing           ActionKind = iota
	DoPlan                         // choose engines, without the ones blamed
	DoPlanAlone                    // the same, but prefer decode alone: prefill hands nothing off
	DoPlanWithoutTokens            // choose engines again: none is asked for, or sent, the prompt's token ids any more
	DoWait                         // pause before the next choice
	DoPair                         // make sure that the pair has shaken hands
	DoAskBoth                      // send both legs
	DoAskPrefill                   // send the prefill leg
	DoAskDecode                    // send the decode leg
	DoAskRest                      // send a decode leg for what comes after prefill's token
	DoExpectDecode                 // prefill has answered, so decode's KV is due: exchange/transfer.go says what follows for which answer
	DoWatchTransfer                // poll both engines for whether the transfer can still come, which changes nothing unless it cannot; exchange/transfer.go says why
	DoAwaitRejection               // prefill has rejected the request: give decode a short time to reject it too
	DoCheckDecode                  // check decode's load, then end its leg unless it must stay open
	DoBlamePrefill                 // plan without this prefill engine
	DoBlameDecode                  // plan without this decode engine
	DoReplyStream                  // the client gets a stream
	DoJoin                         // relay decode's stream after prefill's token
	DoBreak                        // decode has failed before its first event, and the client has prefill's token: say what can be done about the stream
	DoReplyWhole                   // the client gets decode's answer
	DoReplyPrefill                 // the client gets prefill's status and body as they are
	DoReplyDecode                  // the client gets decode's status and body as they are
	DoReplyError                   // the client gets an error answer
	DoPlanContinuation             // choose another decode engine to continue the stream, without the one that was asked last
	DoAskContinuation              // ask it to continue the stream
	DoGoOn                         // relay the continuation
	DoGiveUp                       // note that no engine continues the stream
	DoAppendEnd                    // append the end that the stream lacks
	DoCut                          // append an error event, after which the connection is cut
	DoClosePrefill                 // end the leg by closing its connection
	DoCloseDecode
	DoDisownDecode  // the request no longer needs the leg; it stays open until decode's blocks are reclaimed
	DoDrain         // no client waits any more: keep both legs open, whose events still come
	DoFinishPrefill // let the leg run to its end in the background, within a time limit
	DoFreeDecode    // decode was asked and has shown no token: free its blocks, which may need prefill to be asked again (exchange.freeDecode)
	DoFreePrefill   // no leg takes the blocks that prefill holds: notify it, or send a decode leg of one token that takes them
	DoCancel        // tell both engines through their control routes
	DoFreeTaken     // decode was asked and has ended: free prefill's blocks once decode cannot be reading them any more
	DoAbandon       // decode waits for a run of prefill that is over: reclaim its blocks
	DoCountLeak     // blocks stay held until a lease ends: count them
	DoDone          // the outcome
	DoDrop          // the event did not fit the state
)

func (d ActionKind) String() string {
	return [...]string{
		"nothing", "plan", "plan_alone", "plan_without_tokens", "wait", "pair", "ask_both", "ask_prefill", "ask_decode", "ask_rest", "expect_decode", "watch_transfer", "await_rejection", "check_decode", "blame_prefill",
		"blame_decode", "reply_stream", "join", "break", "reply_whole", "reply_prefill", "reply_decode", "reply_error",
		"plan_continuation", "ask_continuation", "go_on", "give_up", "append_end", "cut",
		"close_prefill", "close_decode", "disown_decode", "drain", "finish_prefill", "free_decode", "free_prefill",
		"cancel", "free_taken", "abandon", "count_leak", "done", "drop",
	}[d]
}

// Action is something to do. Why and Outcome are set where they mean something.
type Action struct {
	Do      ActionKind
	Why     reason.Reason
	Outcome Outcome
}

// Outcome is the one terminal state of a request.
type Outcome uint8

const (
	NoOutcome    Outcome = iota
	Completed            // the client has the whole answer
	ClientLeft           // the client closed its connection, or stopped reading
	FailedBefore         // an error answer; no byte of an engine's answer was sent
	FailedAfter          // an error event within the stream, then the connection was cut
)

var outcomeNames = [...]string{"", "completed", "client_left", "failed_before", "failed_after"}

func (o Outcome) String() string { return outcomeNames[o] }

// MarshalText returns the name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the name.
func (o *Outcome) UnmarshalText(name []byte) error {
	i := slices.Index(outcomeNames[:], string(name))
	if i < 0 {
		return fmt.Errorf("outcome %q is unknown", name)
	}
	*o = Outcome(i)
	return nil
}
