package router

import "pdrouter/router/reason"

// dispatch is the life of one request from its admission to its one terminal outcome, as a value. It knows
// neither bytes nor engines: the exchange that owns it turns I/O into events and actions into I/O.
// The zero value is not usable; newDispatch makes one. It belongs to one goroutine at a time.
type dispatch struct {
	conn    connector
	state   state
	mode    mode
	attempt int // of the dispatch that is under way, from 1
	onward  int // engines that were to go on with the stream
	max     int
	broke   reason.Reason // the stream that another is to go on with
	prefill legState
	decode  legState
}

func newDispatch(conn connector, attempts int) dispatch {
	return dispatch{conn: conn, attempt: 1, max: attempts}
}

// Step applies one event, appends to out what the caller must do next, in this order, and returns it.
// It performs no I/O, starts no goroutine, reads no clock and allocates nothing but what out needs to grow.
// An event that does not fit the state is answered with doDrop.
func (d *dispatch) Step(e event, out []action) []action {
	switch e.kind {
	case evClientLeft, evClientSlow:
		switch {
		case d.state == stDone, d.state == stLingering:
			return d.drop(out)
		case d.state == stAwaiting && d.mode != alone && d.conn.traits().lingers:
			d.state = stLingering
			return append(out, action{do: doLinger}, action{do: doDone, why: e.why, outcome: outLeft})
		}
		return d.finish(out, action{do: doNothing, why: e.why}, outLeft)
	case evDeadline, evShutdown, evPanic:
		if e.kind == evDeadline && d.state == stAwaiting && d.mode != alone && d.conn.traits().lingers {
			// The client has waited long enough, and the engines are as they are when it leaves: ended now, the legs would leave KV
			// behind. At a shutdown they get no time of their own, as draining was theirs: what must run on does, until Close. Behind
			// a panic nothing that the exchange knows of its legs is to be built on, so what can be closed is.
			d.state = stLingering
			return append(out, action{do: doSendError, why: e.why}, action{do: doLinger}, action{do: doDone, why: e.why, outcome: outFailedBefore})
		}
		switch d.state {
		case stDone:
			return d.drop(out)
		case stLingering:
			d.state = stDone
			return d.end(out)
		case stRelaying, stContinuing:
			return d.finish(out, action{do: doCut, why: e.why}, outFailedAfter)
		}
		return d.finish(out, action{do: doSendError, why: e.why}, outFailedBefore)
	}
	switch d.state {
	case stNew:
		if e.kind == evStart {
			d.state = stPlanning
			return append(out, action{do: doPlan})
		}
	case stPlanning:
		return d.planned(e, out)
	case stWaiting:
		if e.kind == evWaited {
			d.state = stPlanning
			return append(out, action{do: doPlan})
		}
	case stPairing:
		return d.paired(e, out)
	case stAwaiting:
		return d.awaited(e, out)
	case stRelaying:
		return d.relayed(e, out)
	case stContinuing:
		return d.continued(e, out)
	case stLingering:
		return d.lingered(e, out)
	}
	return d.drop(out)
}

func (d *dispatch) planned(e event, out []action) []action {
	switch e.kind {
	case evPlannedPair:
		if d.conn.traits().mode == alone {
			return d.drop(out)
		}
		d.mode = d.conn.traits().mode
		d.state = stPairing
		return append(out, action{do: doPair})
	case evPlannedAlone:
		d.mode = alone
		d.state = stAwaiting
		d.decode = legAsked
		return append(out, action{do: doAskDecode})
	case evPlannedLater:
		d.state = stWaiting
		return append(out, action{do: doWait})
	case evPlannedNone:
		return d.finish(out, action{do: doSendError, why: e.why}, outFailedBefore)
	}
	return d.drop(out)
}

func (d *dispatch) paired(e event, out []action) []action {
	switch e.kind {
	case evPaired:
		d.state = stAwaiting
		d.prefill = legAsked
		if d.mode == together {
			d.decode = legAsked
			return append(out, action{do: doAskBoth})
		}
		return append(out, action{do: doAskPrefill})
	case evPairFailed:
		return d.retry(out, doBlamePrefill, e.why)
	}
	return d.drop(out)
}

// awaited handles the time from dispatch to decode's first event: the only time in which a failure is retried
// on engines that have begun to work.
func (d *dispatch) awaited(e event, out []action) []action {
	if e.kind.ofPrefill() && d.prefill != legAsked || e.kind.ofDecode() && d.decode != legAsked {
		return d.drop(out)
	}
	switch e.kind {
	case evPrefillUsable:
		d.prefill = legAnswered
		if d.mode == inTurn {
			d.decode = legAsked
			return append(out, action{do: doAskDecode})
		}
		return append(out, action{do: doExpectDecode})
	case evPrefillUnusable, evPrefillBare, evPrefillRefused, evPrefillBroken, evPrefillLost, evPrefillLate, evPrefillMoved:
		d.prefill = e.kind.leaves()
		return d.retry(out, doBlamePrefill, e.why)
	case evPrefillTooLarge: // every other engine's answer would be as large
		d.prefill = e.kind.leaves()
		return d.finish(out, action{do: doSendError, why: e.why}, outFailedBefore)
	case evDecodeTooLarge:
		d.decode = e.kind.leaves()
		return d.finish(out, action{do: doSendError, why: e.why}, outFailedBefore)
	case evPrefillRejected:
		d.prefill = e.kind.leaves()
		return d.finish(out, action{do: doSendPrefill, why: e.why}, outFailedBefore)
	case evTransferLost:
		if d.mode == together && d.prefill == legAnswered && d.decode == legAsked {
			d.prefill = legLost // what it was to write may be lost with it
			return d.retry(out, doBlamePrefill, e.why)
		}
	case evDecodeFirst:
		d.decode = legAnswered
		d.state = stRelaying
		return append(out, action{do: doSendStream})
	case evDecodeWhole:
		d.decode = legWhole
		return d.finish(out, action{do: doSendWhole}, outCompleted)
	case evDecodeRejected:
		d.decode = e.kind.leaves()
		if e.why == reason.EngineRejected { // whatever it says is what was asked for
			return d.finish(out, action{do: doSendDecode, why: e.why}, outCompleted)
		}
		return d.finish(out, action{do: doSendDecode, why: e.why}, outFailedBefore)
	case evDecodeRefused, evDecodeBroken, evDecodeLost, evDecodeLate:
		d.decode = e.kind.leaves()
		return d.retry(out, doBlameDecode, e.why)
	}
	return d.drop(out)
}

// relayed handles the time after the gate. Nothing is retried: the client has part of an answer. Another engine may only go on
// with it.
func (d *dispatch) relayed(e event, out []action) []action {
	switch {
	case d.decode == legWhole && e.kind.breaks(): // the leg is over, and the end sent in its place
	case e.kind == evStreamWhole:
		d.decode = legWhole
		return d.finish(out, action{do: doNothing}, outCompleted)
	case e.kind == evStreamUnended:
		out = d.end(out)
		d.mode, d.prefill, d.decode = alone, legIdle, legWhole
		return append(out, action{do: doSendEnd})
	case e.kind == evStreamLost:
		d.broke = e.why
		return d.goOn(out, e.why)
	case e.kind == evStreamCut:
		return d.finish(out, action{do: doCut, why: e.why}, outFailedAfter)
	case e.kind.ofPrefill() && d.prefill == legAsked:
		// Decode has tokens, so it has the blocks: what prefill still says changes only how its leg ends.
		d.prefill = e.kind.leaves()
		return out
	}
	return d.drop(out)
}

// continued handles the time in which another engine is to go on with the stream. The client has part of an answer, so that what
// fails here is not tried anew but by one more engine that goes on from the same tokens.
func (d *dispatch) continued(e event, out []action) []action {
	switch {
	case d.decode == legIdle && e.kind == evPlannedAlone:
		d.decode = legAsked
		return append(out, action{do: doAskOnward})
	case d.decode == legIdle && e.kind == evPlannedNone:
		return d.giveUp(out)
	case d.decode != legAsked:
	case e.kind == evDecodeFirst:
		d.state, d.decode = stRelaying, legAnswered
		return append(out, action{do: doGoOn})
	case e.kind == evDecodeTooLarge:
		d.decode, d.broke = e.kind.leaves(), e.why
		return d.giveUp(out)
	case e.kind.ofDecode() && e.kind != evDecodeWhole: // what goes on is a stream
		d.decode = e.kind.leaves()
		return d.goOn(out, e.why)
	}
	return d.drop(out)
}

// goOn ends the legs and has one more engine go on with the stream, unless there were enough. As many may go on as may retry.
func (d *dispatch) goOn(out []action, why reason.Reason) []action {
	if d.onward+1 >= d.max {
		return d.giveUp(out)
	}
	out = d.end(out)
	d.onward++
	d.state, d.mode, d.prefill, d.decode = stContinuing, alone, legIdle, legIdle
	return append(out, action{do: doPlanOnward, why: why})
}

// giveUp cuts the stream, for the reason that it has failed for.
func (d *dispatch) giveUp(out []action) []action {
	return d.finish(append(out, action{do: doGiveUp}), action{do: doCut, why: d.broke}, outFailedAfter)
}

// lingered handles the time behind the outcome in which nobody waits for the legs. They end as soon as decode has tokens, or
// one of them has failed.
func (d *dispatch) lingered(e event, out []action) []action {
	switch {
	case e.kind.ofPrefill() && d.prefill == legAsked:
		d.prefill = e.kind.leaves()
		if e.kind == evPrefillUsable && d.decode == legAsked {
			return append(out, action{do: doExpectDecode})
		}
	case e.kind.ofDecode() && d.decode == legAsked:
		d.decode = e.kind.leaves()
	case e.kind == evTransferLost && d.mode == together && d.prefill == legAnswered && d.decode == legAsked:
		d.prefill = legLost
	default:
		return d.drop(out)
	}
	d.state = stDone
	return d.end(out)
}

// retry ends the legs of this attempt and plans another, or fails the request if there were enough.
func (d *dispatch) retry(out []action, blame do, why reason.Reason) []action {
	if d.attempt >= d.max {
		return d.finish(out, action{do: doSendError, why: why}, outFailedBefore)
	}
	out = d.end(out)
	d.attempt++
	d.state, d.mode, d.prefill, d.decode = stPlanning, alone, legIdle, legIdle
	plan := doPlan
	if why == reason.NoTransferParams {
		plan = doPlanAlone
	}
	return append(out, action{do: blame, why: why}, action{do: plan})
}

// finish ends both legs, tells the client, and closes the books: the one terminal outcome.
func (d *dispatch) finish(out []action, tell action, o outcome) []action {
	if tell.do == doNothing {
		out = d.end(out)
	} else { // the client first: it never waits for the end of a leg
		out = d.end(append(out, tell))
	}
	d.state = stDone
	return append(out, action{do: doDone, why: tell.why, outcome: o})
}

// end appends what ends both legs of the attempt in the way the connector needs.
func (d *dispatch) end(out []action) []action {
	if d.mode == alone {
		if d.decode.open() {
			out = append(out, action{do: doCloseDecode})
		}
		return out
	}
	return d.conn.end(ending{prefill: d.prefill, decode: d.decode}, out)
}

func (d *dispatch) drop(out []action) []action { return append(out, action{do: doDrop}) }
