package reclaim

import "time"

// step is what is done next for KV that an ending has left behind.
type step uint8

const (
	stepNothing       step = iota
	stepAskAgain           // ask prefill again under the same id: what it then writes is right, and decode's blocks come free
	stepLook               // find out whether prefill's run is over
	stepAwait              // wait until decode has surely begun with the request, whose leg is open still, and end the leg
	stepBarrier            // wait until decode has surely noticed that the request is over
	stepNotifyPrefill      // tell prefill that what it holds was taken
	stepNotifyDecode       // tell decode that what it waits for has come
	stepTake               // have a decode engine take what prefill holds, by a leg of one token
	stepClear              // wait until what prefill was asked first is surely over there: two of one name end it
	stepRest               // wait until prefill has nothing in hand
	stepQuiet              // wait until a whole later request has been handed over: prefill writes nothing of this one any more
	stepCount              // count it: nobody can free it before a lease ends, or at all
)

func (s step) String() string {
	return [...]string{"nothing", "ask again", "look", "await", "barrier", "notify prefill", "notify decode", "take", "clear", "rest", "quiet", "count"}[s]
}

// leavesOpen reports whether decode's leg may stay open meanwhile, if it is.
func (s step) leavesOpen() bool {
	switch s {
	case stepAskAgain, stepLook, stepAwait, stepRest, stepQuiet:
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

func (p proof) String() string { return [...]string{"unknown", "lives", "over"}[p] }

// decodeHeld is KV that decode holds for a request which is over, as it waits for prefill to write it: what decides how that
// comes free. It is pure; the zero value is one of which nothing is known.
type decodeHeld struct {
	agent   bool  // the gateway has an agent of its own
	channel bool  // decode's side channel has said which run it is, when the request ended
	named   bool  // decode calls requests exactly as it is told to
	run     proof // of prefill's run
	tried   bool  // prefill was asked again, in vain
	down    bool  // prefill takes no connections
	fenced  bool  // a later request to decode has come to its end
	over    bool  // there is no more time
	open    bool  // decode's leg is open still
	begun   bool  // decode has begun with the request before its leg was ended, so that it holds blocks
	written bool  // prefill was asked again and has finished
	lost    bool  // prefill was asked under the very name that it would be asked again by, and that may run there still
	barred  bool  // prefill must not be asked again: it may hold what it has finished under that very name, and two kill it

	finished bool // prefill does not work on the request any more: it has answered, or was seen with nothing in hand after the end of its leg
	quiet    bool // and a whole later request has been handed over between the two, so that nothing of this one is on its way
}

// next says what is to be done. Decode is told only when three things are shown: prefill cannot write any more, decode had begun with
// the request, and it has noticed that the request is over. Of a request that was over before decode had begun with it there is
// nothing to free, and nothing may be told.
//
// Prefill cannot write any more if its run is over, or if it does not work on the request any more and a whole later request has been
// handed over. Messages and writes between two engines keep their order: decode's registration came before that of the later request,
// so that prefill has matched it, and then its write has come as well, or has dropped what it held, as its lease had ended. The same
// request shows that decode had begun with this one, if its leg was open then.
func (o decodeHeld) next() (step, Cause) {
	switch {
	case o.written:
		return stepNothing, CauseNone
	case o.run == runOver || o.quiet:
		switch why := o.unable(); {
		case why != CauseNone:
			return stepCount, why
		case o.open && !o.over:
			return stepAwait, CauseNone
		case !o.begun:
			return stepCount, CauseUnbegun
		case o.fenced:
			return stepNotifyDecode, CauseNone
		case o.over:
			return stepCount, CauseUnfenced
		}
		return stepBarrier, CauseNone
	case o.tellable() && o.finished:
		return stepQuiet, CauseNone
	case o.tellable() && o.barred && o.lost && o.run == runLives:
		return stepRest, CauseNone
	case (o.barred || o.lost && !o.agent) && o.run == runLives, o.finished && o.over:
		return stepCount, CausePossible
	case o.over, o.down && (o.tried || o.barred || o.lost) && o.unable() != CauseNone:
		if why := o.unable(); o.down && why != CauseNone {
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

// tellable reports whether decode may come to be told though prefill's run lives.
func (o decodeHeld) tellable() bool { return o.open && !o.over && o.unable() == CauseNone }

// unable says why decode could not be told even if prefill's run were over; CauseNone if it could.
func (o decodeHeld) unable() Cause {
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

// PrefillHeld is KV that prefill holds for a request whose hand-over is over: what decides how that comes free.
type PrefillHeld struct {
	agent      bool // the gateway has an agent of its own
	Answered   bool // prefill has answered, and has said by which name it knows the request
	Asked      bool // decode was asked, so that it may be reading or may have registered
	reads      bool // decode reads (pull); else prefill writes
	ended      bool // decode has said itself that the request is over, or does not run any more
	fenced     bool // a later request to decode has come to its end
	tellFailed bool // prefill could not be told
	TakeFailed bool // nobody has taken it either
}

// next says what is to be done. Prefill is told only when nothing can be reading, and nothing that lives can be written to.
func (l PrefillHeld) next() (step, Cause) {
	free := !l.Asked || l.ended || l.fenced && !l.reads
	switch {
	case !l.Answered:
		return stepCount, CauseNoAnswer
	case l.agent && free && !l.tellFailed:
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
	return stepCount, CauseUntold
}

// Cause says why KV stays held.
type Cause uint8

const (
	CauseNone     Cause = iota
	CauseNoAgent        // the gateway has no agent of its own
	CauseNames          // decode draws names of its own for requests: plain_request_ids is not set
	CauseChannel        // decode's side channel is not configured, or has not answered
	CauseUnproven       // prefill cannot be asked again, and whether its run is over is not shown
	CauseUnfenced       // decode finished no later request in time
	CauseReading        // decode may be reading
	CauseNoAnswer       // prefill may have finished, but has not said what it holds
	CauseUntold         // the engine could not be told
	CauseBusy           // too much runs on already
	CauseUnbegun        // decode may have begun with the request or not, and only if it has may it be told
	CausePossible       // it may be held, and nobody can tell
	causes
)

func (s Cause) String() string {
	return [...]string{
		"", "no_agent", "random_request_ids", "no_side_channel", "prefill_unproven", "unfenced", "may_read",
		"no_answer", "not_told", "too_many", "not_begun", "may_hold",
	}[s]
}

// barrierTimes tells which of the requests that have ended at a decode engine it has surely noticed: those that had ended for
// a while when a request was dispatched to it that has completed since. It is pure; the zero value is ready.
type barrierTimes struct {
	ended []time.Time // oldest first; what a later one has not passed yet
}

// BarrierAfter is how long before the dispatch of a request another one must have ended, so that its end has been noticed
// when that completes.
const BarrierAfter = 2 * time.Second

// add notes that a request has ended.
func (f *barrierTimes) add(at time.Time) {
	i := len(f.ended)
	for i > 0 && f.ended[i-1].After(at) {
		i--
	}
	f.ended = append(f.ended, time.Time{})
	copy(f.ended[i+1:], f.ended[i:])
	f.ended[i] = at
}

// due returns when the next request may be dispatched to be of use; false if nothing waits for one.
func (f *barrierTimes) due() (time.Time, bool) {
	if len(f.ended) == 0 {
		return time.Time{}, false
	}
	return f.ended[0].Add(BarrierAfter), true
}

// completed notes that a request has completed, and returns the time up to which those that had ended are passed.
func (f *barrierTimes) completed(dispatched time.Time) time.Time {
	limit := dispatched.Add(-BarrierAfter)
	n := 0
	for n < len(f.ended) && !f.ended[n].After(limit) {
		n++
	}
	f.ended = append(f.ended[:0], f.ended[n:]...)
	return limit
}
