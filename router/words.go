package router

import "pdrouter/router/reason"

// state is where a dispatch stands.
type state uint8

const (
	stNew        state = iota // nothing has happened
	stPlanning                // waits for the choice of engines
	stWaiting                 // gives engines time
	stPairing                 // waits for the pair to know each other
	stAwaiting                // at least one leg is out, nothing has reached the client
	stRelaying                // the gate is open, the answer streams
	stContinuing              // the stream has failed, another engine is to go on with it
	stLingering               // there is an outcome, but legs go on until ending them leaves nothing behind
	stDone                    // there is an outcome, and no leg is open
)

func (s state) String() string {
	return [...]string{"new", "planning", "waiting", "pairing", "awaiting", "relaying", "continuing", "lingering", "done"}[s]
}

// mode is how the legs of an attempt follow each other.
type mode uint8

const (
	alone    mode = iota // one leg: decode serves the whole request
	together             // both legs at once
	inTurn               // decode after prefill has answered
)

func (m mode) String() string { return [...]string{"alone", "together", "in_turn"}[m] }

// legState is what is known of one leg of an attempt.
type legState uint8

const (
	legIdle     legState = iota // never asked
	legAsked                    // asked, no answer
	legAnswered                 // prefill: it has finished; decode: its first event is here
	legWhole                    // decode: its whole answer is here
	legRefused                  // it was certainly not begun: no connection, 429, 503
	legRejected                 // it was certainly not begun, and would never be: any other 4xx
	legBroken                   // it was begun and has ended with an error of the engine
	legLost                     // the connection broke or was given up; what the engine did is unknown
	legMoved                    // prefill finished on another start of the engine than decode was told of
	legBare                     // prefill finished, and hands nothing off
)

func (s legState) String() string {
	return [...]string{"idle", "asked", "answered", "whole", "refused", "rejected", "broken", "lost", "moved", "bare"}[s]
}

// open reports whether a connection of the leg may be waiting for more.
func (s legState) open() bool { return s == legAsked || s == legAnswered }

// failed reports that a prefill leg may have come to nothing, though its engine began with it or might have.
func (s legState) failed() bool {
	return s == legRefused || s == legBroken || s == legLost || s == legMoved || s == legBare
}

// kind is the kind of an event.
type kind uint8

const (
	evStart kind = iota
	evPlannedPair
	evPlannedAlone
	evPlannedNone
	evPlannedLater // not now: engines have failed it and are given time, or none can take it but one may come back
	evWaited       // that time is over
	evPaired
	evPairFailed
	evPrefillUsable   // 200 with the params its connector needs
	evPrefillUnusable // 200 with params that decode could not use: never sent to decode
	evPrefillBare     // 200 without params: the engine, or this route of it, hands nothing off
	evPrefillMoved    // 200 from another start of the engine than the one decode was told of
	evPrefillRefused  // no connection, 429 or 503
	evPrefillRejected // any other 4xx: the request's fault, not the engine's
	evPrefillBroken   // any other 5xx
	evPrefillLost     // the connection broke
	evPrefillLate     // its time is over
	evPrefillTooLarge // its answer exceeds a bound of the gateway's own
	evDecodeFirst     // 200 and the first event
	evDecodeWhole     // 200 and the whole answer
	evDecodeRefused
	evDecodeRejected
	evDecodeBroken // any other 5xx, an error as first event, or an answer that is none
	evDecodeLost
	evDecodeLate
	evDecodeTooLarge // as of prefill; decode had its blocks
	evStreamWhole    // the route's terminal event was relayed
	evStreamUnended  // it ended without it, but the client has all that goes before
	evStreamLost     // it ended without it, or with an error event of the engine, and another can go on
	evStreamCut      // the same, and none can
	evTransferLost   // after prefill's answer its run is over, or the transfer's time, and decode has shown nothing of the transfer
	evClientLeft
	evClientSlow
	evDeadline
	evShutdown
	evPanic
	kinds
)

func (k kind) String() string {
	return [...]string{
		"start", "planned_pair", "planned_alone", "planned_none", "planned_later", "waited", "paired", "pair_failed",
		"prefill_usable", "prefill_unusable", "prefill_bare", "prefill_moved", "prefill_refused", "prefill_rejected",
		"prefill_broken", "prefill_lost", "prefill_late", "prefill_too_large",
		"decode_first", "decode_whole", "decode_refused", "decode_rejected", "decode_broken", "decode_lost",
		"decode_late", "decode_too_large", "stream_whole", "stream_unended", "stream_lost", "stream_cut",
		"transfer_lost", "client_left", "client_slow", "deadline", "shutdown", "panic",
	}[k]
}

// unbegun reports that an attempt has failed before any engine began to work on it.
func (k kind) unbegun() bool {
	return k == evPairFailed || k == evPrefillRefused || k == evDecodeRefused
}

func (k kind) ofPrefill() bool { return k >= evPrefillUsable && k <= evPrefillTooLarge }
func (k kind) ofDecode() bool  { return k >= evDecodeFirst && k <= evDecodeTooLarge }
func (k kind) breaks() bool    { return k >= evStreamUnended && k <= evStreamCut }

// leaves returns the state in which the event leaves its leg.
func (k kind) leaves() legState {
	switch k {
	case evPrefillUsable, evDecodeFirst:
		return legAnswered
	case evPrefillMoved:
		return legMoved
	case evPrefillBare:
		return legBare
	case evDecodeWhole, evDecodeTooLarge: // nothing of it is left with the engine
		return legWhole
	case evPrefillRefused, evDecodeRefused:
		return legRefused
	case evPrefillRejected, evDecodeRejected:
		return legRejected
	case evPrefillUnusable, evPrefillTooLarge, evPrefillBroken, evDecodeBroken:
		return legBroken
	}
	return legLost
}

// event is something that happened to a request. why is the reason that the client and the log will see.
type event struct {
	kind kind
	why  reason.Reason
}

// do is what an action wants done.
type do uint8

const (
	doNothing      do = iota
	doPlan            // choose engines, without the ones blamed
	doPlanAlone       // the same, and decode alone if it may: prefill hands nothing off
	doWait            // give the engines time
	doPair            // see to it that the pair knows each other
	doAskBoth         // send both legs
	doAskPrefill      // send the prefill leg
	doAskDecode       // send the decode leg
	doExpectDecode    // decode's first event is due within the transfer's time
	doBlamePrefill    // plan without this prefill engine
	doBlameDecode     // plan without this decode engine
	doSendStream      // open the gate: relay decode's stream
	doSendWhole       // open the gate: send decode's answer
	doSendPrefill     // send prefill's status and body as they are
	doSendDecode      // send decode's status and body as they are
	doSendError       // send an error answer
	doPlanOnward      // choose another decode engine that goes on with the stream, without the one that was asked last
	doAskOnward       // have it go on
	doGoOn            // it does: relay it
	doGiveUp          // nobody goes on
	doSendEnd         // send the end that the stream lacks
	doCut             // send an error event, then cut the connection
	doClosePrefill    // end the leg by closing its connection
	doCloseDecode
	doDisownDecode  // nobody wants the leg any more, but it stays open for whoever sees to decode's blocks
	doLinger        // leave both legs to themselves, as the client is served: their events still come
	doFinishPrefill // let the leg run on to its end, bounded, with nobody waiting
	doRepeatPrefill // ask prefill again with the whole body under the same id, so that decode's blocks come free
	doDrainDecode   // give what prefill holds to a decode leg of one token under the same id
	doCancel        // tell both engines through their control routes
	doGiveBack      // what prefill holds comes free when nobody can be taking it any more, as decode was asked and has ended
	doAbandon       // decode waits for a run of prefill that is over: see to its blocks
	doStrand        // blocks stay held until a lease ends: count them
	doDone          // the outcome
	doDrop          // the event did not fit the state
)

func (d do) String() string {
	return [...]string{
		"nothing", "plan", "plan_alone", "wait", "pair", "ask_both", "ask_prefill", "ask_decode", "expect_decode", "blame_prefill",
		"blame_decode", "send_stream", "send_whole", "send_prefill", "send_decode", "send_error",
		"plan_onward", "ask_onward", "go_on", "give_up", "send_end", "cut",
		"close_prefill", "close_decode", "disown_decode", "linger", "finish_prefill", "repeat_prefill", "drain_decode",
		"cancel", "give_back", "abandon", "strand", "done", "drop",
	}[d]
}

// action is something to do. why and outcome are set where they mean something.
type action struct {
	do      do
	why     reason.Reason
	outcome outcome
}

// outcome is the small form of Outcome.
type outcome uint8

const (
	outNone outcome = iota
	outCompleted
	outLeft
	outFailedBefore
	outFailedAfter
)

func (o outcome) String() string { return string(o.public()) }

func (o outcome) public() Outcome {
	return [...]Outcome{"", Completed, ClientLeft, FailedBefore, FailedAfter}[o]
}
