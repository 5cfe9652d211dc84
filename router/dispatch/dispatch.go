// Package dispatch decides what happens to one request, as a pure state machine: one event in, the actions that follow out. It knows
// neither bytes nor engines, reads no clock and does no I/O, so a test can play any order of events. Package exchange turns I/O into
// events, and actions into I/O. The connector decides how the legs of an attempt end (Ender).
package dispatch

import "pdrouter/router/reason"

// Dispatch is the life of one request from its admission to its one terminal outcome, as a value. It knows
// neither bytes nor engines: the exchange that owns it turns I/O into events and actions into I/O.
// The zero value is not usable; New makes one. It belongs to one goroutine at a time.
type Dispatch struct {
	ends          Ender
	split         Mode // how the legs of a split request follow each other
	drains        bool // a request without a client drains: see New
	State         State
	Mode          Mode
	withoutTokens bool // an engine has refused the prompt's token ids: the request goes on without them
	attempt       int  // the current one, from 1
	continuations int  // of the stream that were tried
	max           int
	failure       reason.Reason // why the stream broke that a continuation is tried for
	// What the machine was told of each leg. The leg itself may be ahead (Leg.State), and stays answered when its transfer is lost.
	Prefill LegState
	Decode  LegState
}

// Ender says how an engine protocol ends the legs of an attempt.
type Ender interface {
	// End appends what ends both legs, in order.
	End(e Ending, out []Action) []Action
}

// Ending is how the legs of an attempt stood when it ended.
type Ending struct {
	Prefill, Decode LegState
}

// New returns the Dispatch of a request with a limit of attempts. split is how the legs of a split request follow each other. With
// drains, a split request that has lost its client continues until decode's first token: ending its legs earlier would leak KV.
func New(ends Ender, split Mode, drains bool, attempts int) Dispatch {
	return Dispatch{ends: ends, split: split, drains: drains, attempt: 1, max: attempts}
}

// Step applies one event, appends to out what the caller must do next, in this order, and returns it.
// It performs no I/O, starts no goroutine, reads no clock and allocates nothing but what out needs to grow.
// An event that does not fit the state is answered with DoDrop.
func (d *Dispatch) Step(e Event, out []Action) []Action {
	switch e.Kind {
	case EvClientLeft, EvClientSlow, EvCanceled:
		switch {
		case d.State == StDone, d.State == StDraining:
			return d.drop(out)
		case (d.State == StAwaiting || d.State == StJoining) && d.Mode != Alone && d.drains:
			d.State = StDraining
			return append(out, Action{Do: DoDrain}, Action{Do: DoDone, Why: e.Why, Outcome: ClientLeft})
		}
		return d.finish(out, Action{Do: DoNothing, Why: e.Why}, ClientLeft)
	case EvDeadline, EvShutdown, EvPanic:
		if e.Kind == EvDeadline && d.State == StAwaiting && d.Mode != Alone && d.drains {
			// For the engines this is the same as a client that leaves: ending the legs now would leak KV. A shutdown does not drain,
			// as the legs had the time of the shutdown's own drain; those that must continue do so until Close. A panic does not drain
			// either: what the exchange knows of its legs may be wrong, so it closes those that it can.
			d.State = StDraining
			return append(out, Action{Do: DoReplyError, Why: e.Why}, Action{Do: DoDrain}, Action{Do: DoDone, Why: e.Why, Outcome: FailedBefore})
		}
		switch d.State {
		case StDone:
			return d.drop(out)
		case StDraining:
			d.State = StDone
			return d.end(out)
		case StJoining, StRelaying, StContinuing:
			return d.finish(out, Action{Do: DoCut, Why: e.Why}, FailedAfter)
		}
		return d.finish(out, Action{Do: DoReplyError, Why: e.Why}, FailedBefore)
	}
	switch d.State {
	case StNew:
		if e.Kind == EvStart {
			d.State = StPlanning
			return append(out, Action{Do: DoPlan})
		}
	case StPlanning:
		return d.planned(e, out)
	case StWaiting:
		if e.Kind == EvWaited {
			d.State = StPlanning
			return append(out, Action{Do: DoPlan})
		}
	case StPairing:
		return d.paired(e, out)
	case StAwaiting:
		return d.awaited(e, out)
	case StJoining:
		return d.joined(e, out)
	case StRelaying:
		return d.relayed(e, out)
	case StContinuing:
		return d.continued(e, out)
	case StDraining:
		return d.drained(e, out)
	}
	return d.drop(out)
}

func (d *Dispatch) planned(e Event, out []Action) []Action {
	switch e.Kind {
	case EvPlannedPair:
		if d.split == Alone {
			return d.drop(out)
		}
		d.Mode = d.split
		d.State = StPairing
		return append(out, Action{Do: DoPair})
	case EvPlannedAlone:
		d.Mode = Alone
		d.State = StAwaiting
		d.Decode = LegAsked
		return append(out, Action{Do: DoAskDecode})
	case EvPlannedLater:
		d.State = StWaiting
		return append(out, Action{Do: DoWait})
	case EvPlannedNone:
		return d.finish(out, Action{Do: DoReplyError, Why: e.Why}, FailedBefore)
	}
	return d.drop(out)
}

func (d *Dispatch) paired(e Event, out []Action) []Action {
	switch e.Kind {
	case EvPaired:
		d.State = StAwaiting
		d.Prefill = LegAsked
		if d.Mode == Together {
			d.Decode = LegAsked
			return append(out, Action{Do: DoAskBoth})
		}
		return append(out, Action{Do: DoAskPrefill})
	case EvPairFailed:
		return d.retry(out, DoBlamePrefill, e.Why)
	}
	return d.drop(out)
}

// awaited handles the time from dispatch to decode's first event. Only in this state is a failure retried after engines have begun to
// work.
func (d *Dispatch) awaited(e Event, out []Action) []Action {
	if e.Kind.OfPrefill() && d.Prefill != LegAsked || e.Kind.OfDecode() && d.Decode != LegAsked {
		return d.drop(out)
	}
	switch e.Kind {
	case EvPrefillUsable, EvPrefillFirst:
		d.Prefill = LegAnswered
		if d.Mode == InTurn {
			d.Decode = LegAsked
			if e.Kind == EvPrefillFirst {
				d.State = StJoining
				return append(out, Action{Do: DoReplyStream}, Action{Do: DoAskRest})
			}
			return append(out, Action{Do: DoAskDecode})
		}
		return append(out, Action{Do: DoExpectDecode})
	case EvPrefillUnusable, EvPrefillBare, EvPrefillRefused, EvPrefillBroken, EvPrefillLost, EvPrefillLate, EvPrefillMoved:
		d.Prefill = e.Kind.LegState()
		return d.retry(out, DoBlamePrefill, e.Why)
	case EvPrefillNoTokens, EvDecodeNoTokens:
		return d.dropTokens(e, out)
	case EvPrefillTooLarge: // every other engine's answer would be as large
		d.Prefill = e.Kind.LegState()
		return d.finish(out, Action{Do: DoReplyError, Why: e.Why}, FailedBefore)
	case EvDecodeTooLarge:
		d.Decode = e.Kind.LegState()
		return d.finish(out, Action{Do: DoReplyError, Why: e.Why}, FailedBefore)
	case EvPrefillRejected:
		d.Prefill = e.Kind.LegState()
		if d.drains && d.Decode == LegAsked { // as a rule decode rejects it too; else it holds blocks that prefill never writes
			d.State = StDraining
			return append(out, Action{Do: DoReplyPrefill, Why: e.Why}, Action{Do: DoDrain}, Action{Do: DoAwaitRejection}, Action{Do: DoDone, Why: e.Why, Outcome: FailedBefore})
		}
		return d.finish(out, Action{Do: DoReplyPrefill, Why: e.Why}, FailedBefore)
	case EvWatchDue:
		if d.Mode == Together && d.Prefill == LegAnswered && d.Decode == LegAsked {
			return append(out, Action{Do: DoWatchTransfer})
		}
	case EvTransferLost:
		if d.Mode == Together && d.Prefill == LegAnswered && d.Decode == LegAsked {
			d.Prefill = LegLost // what it was to write may be lost with it
			return d.retry(out, DoBlamePrefill, e.Why)
		}
	case EvDecodeFirst:
		d.Decode = LegAnswered
		d.State = StRelaying
		return append(out, Action{Do: DoReplyStream})
	case EvDecodeWhole:
		d.Decode = LegWhole
		return d.finish(out, Action{Do: DoReplyWhole}, Completed)
	case EvDecodeRejected:
		d.Decode = e.Kind.LegState()
		if e.Why == reason.EngineRejected { // the client asked for the engine's own answer
			return d.finish(out, Action{Do: DoReplyDecode, Why: e.Why}, Completed)
		}
		return d.finish(out, Action{Do: DoReplyDecode, Why: e.Why}, FailedBefore)
	case EvDecodeRefused, EvDecodeBroken, EvDecodeLost, EvDecodeLate:
		d.Decode = e.Kind.LegState()
		return d.retry(out, DoBlameDecode, e.Why)
	}
	return d.drop(out)
}

// joined handles the time in which the client has prefill's token and decode has said nothing. A failure of decode is one of the stream, as
// after its first event.
func (d *Dispatch) joined(e Event, out []Action) []Action {
	switch {
	case e.Kind == EvDecodeFirst:
		d.State, d.Decode = StRelaying, LegAnswered
		return append(out, Action{Do: DoJoin})
	case e.Kind == EvDecodeTooLarge:
		d.Decode = e.Kind.LegState()
		return d.finish(out, Action{Do: DoCut, Why: e.Why}, FailedAfter)
	case e.Kind.OfDecode() && e.Kind != EvDecodeWhole: // what was asked for is a stream
		d.State, d.Decode = StRelaying, e.Kind.LegState()
		return append(out, Action{Do: DoBreak, Why: e.Why})
	}
	return d.drop(out)
}

// relayed handles the time after the first event was sent. The client has part of an answer, so nothing is retried. Another engine
// may only continue the stream.
func (d *Dispatch) relayed(e Event, out []Action) []Action {
	switch {
	case d.Decode == LegWhole && e.Kind.Breaks(): // the leg has ended, and the gateway has sent the end of the stream
	case e.Kind == EvStreamWhole:
		d.Decode = LegWhole
		return d.finish(out, Action{Do: DoNothing}, Completed)
	case e.Kind == EvStreamUnended:
		out = d.end(out)
		d.Mode, d.Prefill, d.Decode = Alone, LegIdle, LegWhole
		return append(out, Action{Do: DoAppendEnd})
	case e.Kind == EvStreamLost:
		d.failure = e.Why
		return d.goOn(out, e.Why)
	case e.Kind == EvStreamCut:
		return d.finish(out, Action{Do: DoCut, Why: e.Why}, FailedAfter)
	case e.Kind.OfPrefill() && d.Prefill == LegAsked:
		// Decode has tokens, so it has the blocks: what prefill still says changes only how its leg ends.
		d.Prefill = e.Kind.LegState()
		return out
	}
	return d.drop(out)
}

// continued handles the time in which another engine is chosen and asked to continue the stream. The client has part of an answer. So
// a failure here is not a retry: one more engine continues from the same tokens.
func (d *Dispatch) continued(e Event, out []Action) []Action {
	switch {
	case d.Decode == LegIdle && e.Kind == EvPlannedAlone:
		d.Decode = LegAsked
		return append(out, Action{Do: DoAskContinuation})
	case d.Decode == LegIdle && e.Kind == EvPlannedNone:
		return d.giveUp(out)
	case d.Decode != LegAsked:
	case e.Kind == EvDecodeFirst:
		d.State, d.Decode = StRelaying, LegAnswered
		return append(out, Action{Do: DoGoOn})
	case e.Kind == EvDecodeTooLarge:
		d.Decode, d.failure = e.Kind.LegState(), e.Why
		return d.giveUp(out)
	case e.Kind.OfDecode() && e.Kind != EvDecodeWhole: // what goes on is a stream
		d.Decode = e.Kind.LegState()
		return d.goOn(out, e.Why)
	}
	return d.drop(out)
}

// goOn ends the legs and plans one more continuation of the stream, within the limit of attempts.
func (d *Dispatch) goOn(out []Action, why reason.Reason) []Action {
	if d.continuations+1 >= d.max {
		return d.giveUp(out)
	}
	out = d.end(out)
	d.continuations++
	d.State, d.Mode, d.Prefill, d.Decode = StContinuing, Alone, LegIdle, LegIdle
	return append(out, Action{Do: DoPlanContinuation, Why: why})
}

// giveUp cuts the stream, for the reason why it broke.
func (d *Dispatch) giveUp(out []Action) []Action {
	return d.finish(append(out, Action{Do: DoGiveUp}), Action{Do: DoCut, Why: d.failure}, FailedAfter)
}

// drained handles the time after the outcome, when no client waits. The legs end when decode has tokens or one of them has failed, or at
// once if the request cannot drain.
func (d *Dispatch) drained(e Event, out []Action) []Action {
	switch {
	case e.Kind.OfPrefill() && d.Prefill == LegAsked:
		d.Prefill = e.Kind.LegState()
		switch {
		case d.Decode != LegAsked:
		case e.Kind == EvPrefillUsable:
			return append(out, Action{Do: DoExpectDecode})
		case e.Kind == EvPrefillRejected:
			return append(out, Action{Do: DoAwaitRejection})
		}
	case e.Kind.OfDecode() && d.Decode == LegAsked:
		d.Decode = e.Kind.LegState()
	case e.Kind == EvNoDrain && d.Prefill == LegRejected: // as a rule decode rejects it too
		d.State = StDone
		return append(out, Action{Do: DoCloseDecode})
	case e.Kind == EvNoDrain:
	case e.Kind == EvCheckDue && d.Decode == LegAsked && d.Prefill == LegRejected: // decode has taken what prefill rejects
	case e.Kind == EvCheckDue && d.Decode == LegAsked:
		return append(out, Action{Do: DoCheckDecode})
	case e.Kind == EvTransferLost && d.Mode == Together && d.Prefill == LegAnswered && d.Decode == LegAsked:
		d.Prefill = LegLost
	default:
		return d.drop(out)
	}
	d.State = StDone
	return d.end(out)
}

// retry ends the legs of this attempt and plans another, or fails the request if there were enough.
func (d *Dispatch) retry(out []Action, blame ActionKind, why reason.Reason) []Action {
	if d.attempt >= d.max {
		return d.finish(out, Action{Do: DoReplyError, Why: why}, FailedBefore)
	}
	out = d.end(out)
	d.attempt++
	d.State, d.Mode, d.Prefill, d.Decode = StPlanning, Alone, LegIdle, LegIdle
	plan := DoPlan
	if why == reason.NoTransferParams {
		plan = DoPlanAlone
	}
	return append(out, Action{Do: blame, Why: why}, Action{Do: plan})
}

// dropTokens ends the legs of an attempt in which an engine has refused the prompt's token ids, and plans another without them. It does not
// count as an attempt, as the request and its engines are not at fault; so it happens once.
func (d *Dispatch) dropTokens(e Event, out []Action) []Action {
	if e.Kind.OfPrefill() {
		d.Prefill = e.Kind.LegState()
	} else {
		d.Decode = e.Kind.LegState()
	}
	if d.withoutTokens {
		return d.finish(out, Action{Do: DoReplyError, Why: e.Why}, FailedBefore)
	}
	out = d.end(out)
	d.withoutTokens = true
	d.State, d.Mode, d.Prefill, d.Decode = StPlanning, Alone, LegIdle, LegIdle
	return append(out, Action{Do: DoPlanWithoutTokens})
}

// finish tells the client, ends both legs and sets the one terminal outcome.
func (d *Dispatch) finish(out []Action, tell Action, o Outcome) []Action {
	if tell.Do == DoNothing {
		out = d.end(out)
	} else { // the client first: it never waits for the end of a leg
		out = d.end(append(out, tell))
	}
	d.State = StDone
	return append(out, Action{Do: DoDone, Why: tell.Why, Outcome: o})
}

// end appends what ends both legs of the attempt in the way the connector needs.
func (d *Dispatch) end(out []Action) []Action {
	if d.Mode == Alone {
		if d.Decode.Open() {
			out = append(out, Action{Do: DoCloseDecode})
		}
		return out
	}
	return d.ends.End(Ending{Prefill: d.Prefill, Decode: d.Decode}, out)
}

func (d *Dispatch) drop(out []Action) []Action { return append(out, Action{Do: DoDrop}) }
