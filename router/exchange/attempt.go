package exchange

import (
	"errors"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
)

// attempt is one try to serve a request: a pair of engines, or one engine alone, and ids of its own. It belongs to the owner of the
// request. Anybody may read what became of its legs (Leg.State).
type attempt struct {
	h       connector.Handoff
	pair    *fleet.Pair // of a pair; nil if it is not one that is kept warm
	prefill leg.Leg
	decode  leg.Leg
	stream  *relay.Stream // decode's answer, up to its first event; written before decode's event is sent

	noted      *fleet.Noted // what is thought of the engines' prefix caches by it; nil if the policy does not look at them
	tokens     *forwarding  // nil: prefill is not asked for the prompt's token ids
	decodeIs   custody
	split      bool // by two engines
	parked     bool // it waits for the pair
	leaked     bool // KV may be leaked
	hurried    bool // no client waits for the answer
	unstreamed bool // decode's first byte comes with its last, and says nothing of the transfer

	due           time.Time   // of decode's first token; zero until prefill has answered
	prefillTimer  *time.Timer // the prefill leg's time
	transferTimer *time.Timer // runs until decode's first token is due; nil if that is not set
	checkTimer    *time.Timer // until the transfer is watched, or until decode's load is checked or its leg ended (checkIn); nil if none is due

	// onTransferLost is called when the transfer has not come. It leaves decode's leg open: the job that frees decode's blocks ends it. It is
	// nil if decode reads, or if decode's engine itself ends a transfer that fails.
	onTransferLost func(why reason.Reason)
	landed         func() bool // whether the transfer is over, as far as is known; nil if that cannot be known

	ifPrefillFails atomic.Pointer[reclaim.Job] // the job for then, as the leg continues only for decode's blocks; prefillOver after its end
}

// served is what a request is served with: what is written to its legs, and how they are ended. Its fields do not change after Begin, so legs'
// goroutines read them too, but for excluded, which belongs to the owner of the exchange like the attempt that its methods are given.
type served struct {
	all       *Exchanges
	s         *Snapshot // what the request is served by
	m         *fleet.Model
	b         *openai.Body
	path      string // of the engine's route; the route table's, never the client's bytes
	forwarded *leg.Forwarded
	excluded  fleet.Excluded // engines that have failed it
}

// custody says who ends a decode leg.
type custody uint8

const (
	withOwner   custody = iota // it was not asked yet, or the owner has its event
	withAsker                  // the goroutine that asks it
	withReclaim                // the job that frees what decode holds: the leg stays open for it
	withNobody                 // it has ended
)

// prefillOver stands in ifPrefillFails once the leg is over.
var prefillOver = new(reclaim.Job)

// runs are the runs of the engines that the pair consists of.
func (a *attempt) runs() metadata.Pair {
	if a.prefill.Engine.Publishes {
		return metadata.Pair{Prefill: a.h.Prefill, Decode: a.h.Decode}
	}
	return fleet.StockRuns(a.prefill.Engine, a.decode.Engine)
}

// prefillEnded notes how the prefill leg has ended. If the leg has to free decode's blocks, which stay held, it returns the job for that.
func (a *attempt) prefillEnded(e dispatch.Event) *reclaim.Job {
	a.prefill.EngineKnows = e.Why != reason.Panic && a.prefill.Acknowledged()
	a.prefill.Became(e.Kind.LegState())
	m := a.ifPrefillFails.Swap(prefillOver)
	if m == nil || !a.prefillFailed() {
		return nil
	}
	m.PrefillLost, m.Noticed, m.Closed = a.prefillMayHold(), a.prefill.EngineKnows, time.Now()
	return m
}

// onPrefillFailure has job m free decode's blocks if the prefill leg fails. It reports false if the leg has failed already.
func (a *attempt) onPrefillFailure(m *reclaim.Job) bool {
	return a.ifPrefillFails.CompareAndSwap(nil, m) || !a.prefillFailed()
}

// prefillFailed reports that the prefill leg is over and has not written decode's blocks. What prefill rejects decode rejects as well.
func (a *attempt) prefillFailed() bool {
	return a.prefill.State().Failed()
}

// prefillMayHold reports that the prefill leg is over, and that its engine may still run it or hold its KV: an error does not say that it
// does not.
func (a *attempt) prefillMayHold() bool {
	s := a.prefill.State()
	return s == dispatch.LegLost || s == dispatch.LegBroken || s == dispatch.LegNoHandOff
}

// prefillLeftNothing reports that the prefill leg is over and that nothing of it is left at the engine that decode's request names: it has not
// begun, or another run has finished it.
func (a *attempt) prefillLeftNothing() bool { return a.prefillFailed() && !a.prefillMayHold() }

// prefillAcknowledged reports whether the prefill leg is over and its engine knows.
func (a *attempt) prefillAcknowledged() bool {
	return a.prefill.State().Resolved() && a.prefill.EngineKnows
}

// prefillAnswered reports whether the prefill leg's usable answer is here.
func (a *attempt) prefillAnswered() bool { return a.prefill.State() == dispatch.LegAnswered }

// prefillKeptAll reports that the prefill leg is over and has handed nothing off. never says that its engine surely writes nothing: it has
// rejected the request, or ended for a reason of its own. One that was cut at its limit may write without saying so.
func (a *attempt) prefillKeptAll() (kept, never bool) {
	switch a.prefill.State() {
	case dispatch.LegRejected:
		return true, true
	case dispatch.LegNoHandOff:
		return true, !leg.EndedAtLimit(a.prefill.Body)
	}
	return false, false
}

// spoiled reports whether decode may have used its reference to prefill's blocks, so that no other leg may use it.
func (a *attempt) spoiled() bool { return a.decode.State() == dispatch.LegBroken }

var errRunOver = errors.New("its run is over, and nothing shows that the KV has come")

// legOf returns the leg that an event is about, nil if it is about none. A handshake or a transfer that fails is about prefill's.
func (a *attempt) legOf(e dispatch.Event) *leg.Leg {
	switch k := e.Kind; {
	case k.OfPrefill(), k == dispatch.EvPairFailed, k == dispatch.EvTransferLost:
		return &a.prefill
	case k.OfDecode(), k.Breaks():
		return &a.decode
	}
	return nil
}

// decodeArrived takes over the decode leg, whose event is here.
func (a *attempt) decodeArrived() {
	a.stopTimers()
	if a.decodeIs == withAsker {
		a.decodeIs = withOwner
	} else { // it was to end meanwhile
		a.release()
	}
}

func (a *attempt) stopTimers() {
	for _, t := range [...]*time.Timer{a.transferTimer, a.checkTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// closeDecode ends the decode leg, in whatever it is. It may be called twice.
func (a *attempt) closeDecode() {
	was := a.decodeIs
	a.decodeIs = withNobody
	switch was {
	case withOwner:
		a.release()
	case withAsker, withReclaim:
		a.decode.Cancel(leg.ErrEnded) // the goroutine that asks it then ends it
	}
}

// disown leaves the decode leg open for the job that frees what decode holds. If the leg is over, it is closed.
func (a *attempt) disown() {
	switch {
	case a.decodeIs == withOwner, a.decode.State().Resolved():
		a.closeDecode()
	case a.decodeIs == withAsker:
		a.decodeIs = withReclaim
	}
}

// keptOpen reports whether the decode leg was disowned and is open still.
func (a *attempt) keptOpen() bool { return a.decodeIs == withReclaim && !a.decode.State().Resolved() }

// letGo ends the decode leg, unless it was disowned.
func (a *attempt) letGo() {
	a.stopTimers()
	if a.decodeIs != withReclaim {
		a.closeDecode()
	}
}

// release ends a decode leg that is not being asked.
func (a *attempt) release() {
	if a.stream != nil {
		a.stream.Free()
		a.stream = nil
	}
	a.decode.End()
}

// wholeWithoutClient reports whether the answer is not streamed and no client waits for it: decode's leg shows nothing of the KV.
func (a *attempt) wholeWithoutClient() bool { return a.unstreamed && a.hurried }

// decodeUnsent reports that the decode leg is over and no byte of it has left.
func (a *attempt) decodeUnsent() bool { return a.decode.State().Resolved() && a.decode.Unsent() }
