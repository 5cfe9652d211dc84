package reclaim

// step is the next step to free the KV of an ended request.
type step uint8

const (
	stepNothing       step = iota
	stepAskAgain           // ask prefill again under the same id: what it then writes is right, and decode's blocks are freed
	stepLook               // find out whether prefill's run is over
	stepAwait              // wait until decode has surely begun with the request, whose leg is open still, and end the leg
	stepBarrier            // wait until decode has surely noticed that the request is over
	stepNotifyPrefill      // tell prefill that what it holds was taken
	stepNotifyDecode       // tell decode that what it waits for has come
	stepTake               // have a decode engine take what prefill holds, by a leg of one token
	stepClear              // wait until prefill is surely done with the first request: two with one id crash it
	stepIdle               // wait until prefill has no request at all
	stepFlush              // wait until a whole later request was handed over: then prefill writes nothing more of this one
	stepCount              // count it: it cannot be freed before a lease ends, or at all
)

func (s step) String() string {
	return [...]string{"nothing", "ask again", "look", "await", "barrier", "notify prefill", "notify decode", "take", "clear", "idle", "flush", "count"}[s]
}

// leavesOpen reports whether decode's leg may stay open during the step.
func (s step) leavesOpen() bool {
	switch s {
	case stepAskAgain, stepLook, stepAwait, stepIdle, stepFlush:
		return true
	}
	return false
}

// proof is what is known of the run of prefill that decode registered with.
type proof uint8

const (
	runUnknown proof = iota // it may live
	runLives                // it has answered
	runOver                 // another run answers in its place, or its process is gone
)

// decodeHeld is what is known of KV that decode holds for an ended request because it waits for prefill to write it. It decides how the KV
// is freed. It is pure; in the zero value nothing is known.
type decodeHeld struct {
	agent   bool  // the gateway has an agent of its own
	channel bool  // decode's side channel had reported its run when the request ended
	named   bool  // decode uses the request's own id
	run     proof // of prefill's run
	tried   bool  // prefill was asked again without success
	down    bool  // prefill takes no connections
	passed  bool  // decode has completed a later request: the barrier
	over    bool  // there is no more time
	open    bool  // decode's leg is open still
	begun   bool  // decode had begun with the request before its leg was ended, so it holds blocks
	written bool  // prefill was asked again and has finished
	lost    bool  // the first request to prefill may still run there, with the id that a second one would have
	barred  bool  // prefill must not be asked again: it may hold a finished request with the same id, and two crash it

	finished bool // prefill does not work on the request any more: it has answered, or had no request at all after the end of its leg
	flushed  bool // and a whole later request was handed over between the two engines, so nothing of this one is on its way
}

// next returns the next step. Decode is notified only when three things are shown: prefill cannot write any more, decode had begun with
// the request, and decode has noticed that the request is over. If the request ended before decode began with it, there is nothing to
// free, and decode must not be notified.
//
// Prefill cannot write any more if its run is over, or if it does not work on the request any more and a whole later request was handed
// over. Messages and writes between two engines keep their order. Decode registered this request before the later one, so prefill has
// either matched the registration and written, or dropped the KV because its lease ended. The later request also shows that decode had
// begun with this one, if its leg was open then.
func (o decodeHeld) next() (step, Cause) {
	switch {
	case o.written:
		return stepNothing, CauseNone
	case o.run == runOver || o.flushed:
		switch why := o.cannotNotify(); {
		case why != CauseNone:
			return stepCount, why
		case o.open && !o.over:
			return stepAwait, CauseNone
		case !o.begun:
			return stepCount, CauseUnbegun
		case o.passed:
			return stepNotifyDecode, CauseNone
		case o.over:
			return stepCount, CauseNoBarrier
		}
		return stepBarrier, CauseNone
	case o.mayNotify() && o.finished:
		return stepFlush, CauseNone
	case o.mayNotify() && o.barred && o.lost && o.run == runLives:
		return stepIdle, CauseNone
	case (o.barred || o.lost && !o.agent) && o.run == runLives, o.finished && o.over:
		return stepCount, CausePossible
	case o.over, o.down && (o.tried || o.barred || o.lost) && o.cannotNotify() != CauseNone:
		if why := o.cannotNotify(); o.down && why != CauseNone {
			return stepCount, why
		}
		return stepCount, CauseUnproven
	case o.lost && !o.barred && o.agent && o.run == runLives: // a wait for what is dead would be for nothing
		return stepClear, CauseNone
	case !o.tried && !o.barred && !o.lost:
		return stepAskAgain, CauseNone
	}
	return stepLook, CauseNone
}

// mayNotify reports whether a notification of decode is possible although prefill's run lives.
func (o decodeHeld) mayNotify() bool { return o.open && !o.over && o.cannotNotify() == CauseNone }

// cannotNotify returns why decode could not be notified even if prefill's run were over; CauseNone if it could.
func (o decodeHeld) cannotNotify() Cause {
	switch {
	case !o.agent:
		return CauseNoAgent
	case !o.named:
		return CauseNames
	case !o.channel:
		return CauseChannel
	}
	return CauseNone
}

// PrefillHeld is what is known of KV that prefill holds for a request whose hand-off is over. It decides how the KV is freed.
type PrefillHeld struct {
	agent        bool // the gateway has an agent of its own
	Answered     bool // prefill has answered, and its answer has the id that it uses for the request
	Asked        bool // decode was asked, so it may be reading or may have registered
	reads        bool // decode reads (pull); else prefill writes
	ended        bool // decode's run is over
	passed       bool // decode has completed a later request: the barrier
	notifyFailed bool // prefill could not be notified
	TakeFailed   bool // no decode leg has taken it either
}

// next returns the next step. Prefill is notified only when no engine can be reading, and no live engine can be written to.
func (l PrefillHeld) next() (step, Cause) {
	free := !l.Asked || l.ended || l.passed && !l.reads
	switch {
	case !l.Answered:
		return stepCount, CauseNoAnswer
	case l.agent && free && !l.notifyFailed:
		return stepNotifyPrefill, CauseNone
	case !l.Asked && !l.TakeFailed: // a leg under the same id takes it, once
		return stepTake, CauseNone
	case l.agent && !free && !l.reads:
		return stepBarrier, CauseNone
	case !free && l.reads:
		return stepCount, CauseReading
	case !l.agent:
		return stepCount, CauseNoAgent
	}
	return stepCount, CauseNotNotified
}
