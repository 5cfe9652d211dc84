package dispatch

import "pdrouter/router/reason"

// State is where a dispatch stands.
type State uint8

const (
	StNew        State = iota // nothing has happened
	StPlanning                // waits for the choice of engines
	StWaiting                 // gives engines time
	StPairing                 // waits for the pair to know each other
	StAwaiting                // at least one leg is out, nothing has reached the client
	StRelaying                // the gate is open, the answer streams
	StContinuing              // the stream has failed, another engine is to go on with it
	StDraining                // there is an outcome, but legs go on until ending them leaves nothing behind
	StDone                    // there is an outcome, and no leg is open
)

func (s State) String() string {
	return [...]string{"new", "planning", "waiting", "pairing", "awaiting", "relaying", "continuing", "draining", "done"}[s]
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
	LegIdle     LegState = iota // never asked
	LegAsked                    // asked, no answer
	LegAnswered                 // prefill: it has finished; decode: its first event is here
	LegWhole                    // decode: its whole answer is here
	LegRefused                  // it was certainly not begun: no connection, 429, 503
	LegRejected                 // it was certainly not begun, and would never be: any other 4xx
	LegBroken                   // it was begun and has ended with an error of the engine
	LegLost                     // the connection broke or was given up; what the engine did is unknown
	LegMoved                    // prefill finished on another start of the engine than decode was told of
	LegBare                     // prefill finished, and hands nothing off
)

func (s LegState) String() string {
	return [...]string{"idle", "asked", "answered", "whole", "refused", "rejected", "broken", "lost", "moved", "bare"}[s]
}

// Over reports whether the leg was asked and nothing is waited for: it has ended, or its stream has begun.
func (s LegState) Over() bool { return s > LegAsked }

// Open reports whether a connection of the leg may be waiting for more.
func (s LegState) Open() bool { return s == LegAsked || s == LegAnswered }

// Failed reports that a prefill leg may have come to nothing, though its engine began with it or might have.
func (s LegState) Failed() bool {
	return s == LegRefused || s == LegBroken || s == LegLost || s == LegMoved || s == LegBare
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	EvStart EventKind = iota
	EvPlannedPair
	EvPlannedAlone
	EvPlannedNone
	EvPlannedLater // not now: engines have failed it and are given time, or none can take it but one may come back
	EvWaited       // that time is over
	EvPaired
	EvPairFailed
	EvPrefillUsable   // 200 with the params its connector needs
	EvPrefillUnusable // 200 with params that decode could not use: never sent to decode
	EvPrefillBare     // 200 without params: the engine, or this route of it, hands nothing off
	EvPrefillMoved    // 200 from another start of the engine than the one decode was told of
	EvPrefillRefused  // no connection, 429 or 503
	EvPrefillRejected // any other 4xx: the request's fault, not the engine's
	EvPrefillBroken   // any other 5xx
	EvPrefillLost     // the connection broke
	EvPrefillLate     // its time is over
	EvPrefillTooLarge // its answer exceeds a bound of the gateway's own
	EvDecodeFirst     // 200 and the first event
	EvDecodeWhole     // 200 and the whole answer
	EvDecodeRefused
	EvDecodeRejected
	EvDecodeBroken // any other 5xx, an error as first event, or an answer that is none
	EvDecodeLost
	EvDecodeLate
	EvDecodeTooLarge // as of prefill; decode had its blocks
	EvStreamWhole    // the route's terminal event was relayed
	EvStreamUnended  // it ended without it, but the client has all that goes before
	EvStreamLost     // it ended without it, or with an error event of the engine, and another can go on
	EvStreamCut      // the same, and none can
	EvWatchDue       // decode has not shown anything of the transfer yet: it is to be watched
	EvCheckDue       // decode had a while to come to work, and nobody waits for its answer
	EvTransferLost   // after prefill's answer its run is over, or the transfer's time, and decode has shown nothing of the transfer
	EvClientLeft
	EvClientSlow
	EvCanceled // the request that this is one choice of is over
	EvDeadline
	EvShutdown
	EvPanic
	EventKinds
)

func (k EventKind) String() string {
	return [...]string{
		"start", "planned_pair", "planned_alone", "planned_none", "planned_later", "waited", "paired", "pair_failed",
		"prefill_usable", "prefill_unusable", "prefill_bare", "prefill_moved", "prefill_refused", "prefill_rejected",
		"prefill_broken", "prefill_lost", "prefill_late", "prefill_too_large",
		"decode_first", "decode_whole", "decode_refused", "decode_rejected", "decode_broken", "decode_lost",
		"decode_late", "decode_too_large", "stream_whole", "stream_unended", "stream_lost", "stream_cut",
		"watch_due", "check_due", "transfer_lost", "client_left", "client_slow", "canceled", "deadline", "shutdown", "panic",
	}[k]
}

// Unbegun reports that an attempt has failed before any engine began to work on it.
func (k EventKind) Unbegun() bool {
	return k == EvPairFailed || k == EvPrefillRefused || k == EvDecodeRefused
}

func (k EventKind) OfPrefill() bool { return k >= EvPrefillUsable && k <= EvPrefillTooLarge }
func (k EventKind) OfDecode() bool  { return k >= EvDecodeFirst && k <= EvDecodeTooLarge }
func (k EventKind) OfTimer() bool   { return k == EvWatchDue || k == EvCheckDue }
func (k EventKind) Breaks() bool    { return k >= EvStreamUnended && k <= EvStreamCut }

// Leaves returns the state in which the event leaves its leg.
func (k EventKind) Leaves() LegState {
	switch k {
	case EvPrefillUsable, EvDecodeFirst:
		return LegAnswered
	case EvPrefillMoved:
		return LegMoved
	case EvPrefillBare:
		return LegBare
	case EvDecodeWhole, EvDecodeTooLarge: // nothing of it is left with the engine
		return LegWhole
	case EvPrefillRefused, EvDecodeRefused:
		return LegRefused
	case EvPrefillRejected, EvDecodeRejected:
		return LegRejected
	case EvPrefillUnusable, EvPrefillTooLarge, EvPrefillBroken, EvDecodeBroken:
		return LegBroken
	}
	return LegLost
}

// Event is something that happened to a request. why is the reason that the client and the log will see.
type Event struct {
	Kind EventKind
	Why  reason.Reason
}

// ActionKind is what an action wants done.
type ActionKind uint8

const (
	DoNothing       ActionKind = iota
	DoPlan                     // choose engines, without the ones blamed
	DoPlanAlone                // the same, and decode alone if it may: prefill hands nothing off
	DoWait                     // give the engines time
	DoPair                     // see to it that the pair knows each other
	DoAskBoth                  // send both legs
	DoAskPrefill               // send the prefill leg
	DoAskDecode                // send the decode leg
	DoExpectDecode             // decode's first event is due within the transfer's time
	DoWatchTransfer            // find out whether the transfer can still come
	DoCheckDecode              // find out whether decode is at work, and end its leg if that can be
	DoBlamePrefill             // plan without this prefill engine
	DoBlameDecode              // plan without this decode engine
	DoSendStream               // open the gate: relay decode's stream
	DoSendWhole                // open the gate: send decode's answer
	DoSendPrefill              // send prefill's status and body as they are
	DoSendDecode               // send decode's status and body as they are
	DoSendError                // send an error answer
	DoPlanOnward               // choose another decode engine that goes on with the stream, without the one that was asked last
	DoAskOnward                // have it go on
	DoGoOn                     // it does: relay it
	DoGiveUp                   // nobody goes on
	DoSendEnd                  // send the end that the stream lacks
	DoCut                      // send an error event, then cut the connection
	DoClosePrefill             // end the leg by closing its connection
	DoCloseDecode
	DoDisownDecode  // nobody wants the leg any more, but it stays open for whoever sees to decode's blocks
	DoDrain         // leave both legs to themselves, as the client is served: their events still come
	DoFinishPrefill // let the leg run on to its end, bounded, with nobody waiting
	DoRepeatPrefill // ask prefill again with the whole body under the same id, so that decode's blocks come free
	DoDrainDecode   // give what prefill holds to a decode leg of one token under the same id
	DoCancel        // tell both engines through their control routes
	DoGiveBack      // what prefill holds comes free when nobody can be taking it any more, as decode was asked and has ended
	DoAbandon       // decode waits for a run of prefill that is over: see to its blocks
	DoStrand        // blocks stay held until a lease ends: count them
	DoDone          // the outcome
	DoDrop          // the event did not fit the state
)

func (d ActionKind) String() string {
	return [...]string{
		"nothing", "plan", "plan_alone", "wait", "pair", "ask_both", "ask_prefill", "ask_decode", "expect_decode", "watch_transfer", "check_decode", "blame_prefill",
		"blame_decode", "send_stream", "send_whole", "send_prefill", "send_decode", "send_error",
		"plan_onward", "ask_onward", "go_on", "give_up", "send_end", "cut",
		"close_prefill", "close_decode", "disown_decode", "drain", "finish_prefill", "repeat_prefill", "drain_decode",
		"cancel", "give_back", "abandon", "strand", "done", "drop",
	}[d]
}

// Action is something to do. why and outcome are set where they mean something.
type Action struct {
	Do      ActionKind
	Why     reason.Reason
	Outcome outcome
}

// outcome is the one terminal state of a request.
type outcome uint8

const (
	NoOutcome    outcome = iota
	Completed            // the client has the whole answer
	ClientLeft           // the client closed its connection, or stopped reading
	FailedBefore         // an error answer; no byte of an engine's answer was sent
	FailedAfter          // an error event within the stream, then the connection was cut
)

func (o outcome) String() string {
	return [...]string{"", "completed", "client_left", "failed_before", "failed_after"}[o]
}
