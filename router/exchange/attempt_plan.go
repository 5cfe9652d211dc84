package exchange

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// plan chooses the engines of the next attempt.
func (x *Exchange) plan() dispatch.Event {
	retry, waited := x.Sum.Attempts > 0, x.pause > 0
	x.pause = 0
	choice, f := x.choose(x.excluded)
	switch {
	case choice.Decode < 0 && len(x.excluded) > 0:
		var e dispatch.Event
		var late bool
		if choice, f, e, late = x.back(waited); late {
			if e.Kind == dispatch.EvPlannedLater && !waited && !x.m.Retries.Retry(time.Now()) {
				return x.overBudget()
			}
			return e
		}
	case retry && !waited && x.doubles(choice) && !x.m.Retries.Retry(time.Now()):
		if choice, f = x.choose(x.excluded.With(x.m.Prefill)); choice.Decode < 0 || x.doubles(choice) {
			return x.overBudget()
		}
	}
	x.Sum.Phases.Plan = x.selection.Now.Sub(x.Sum.Arrived)
	x.Sum.Reason, x.Sum.Prefill, x.Sum.Decode = string(choice.Reason), "", ""
	if choice.Decode < 0 {
		return x.noEngine(choice)
	}
	x.waitsUntil = time.Time{}
	a := &attempt{split: choice.Split, unstreamed: !x.b.Stream}
	a.h.Shape = x.b.Shape
	a.h.Draw()
	x.choice, x.Sum.Phases.Prefill = choice, 0
	x.attempt(a)
	x.Sum.Decode = f.Decode[choice.Decode].Name
	toPrefill, toDecode := x.selection.NotePrompt(choice)
	a.prefill.Unread.Store(int64(toPrefill))
	a.decode.Unread.Store(int64(toDecode))
	a.decode.Join(x.r.Cancels, x.m.Decode[choice.Decode]) // it counts with its engine from now on, as the pair may have to be waited for
	if !choice.Split {
		return dispatch.Event{Kind: dispatch.EvPlannedAlone}
	}
	x.Sum.Prefill = f.Prefill[choice.Prefill].Name
	x.Sum.TransferID = a.h.Transfer
	a.prefill.Engine = x.m.Prefill[choice.Prefill]
	if x.m.Connector.Traits().Writes {
		a.onTransferLost = func(why reason.Reason) { x.transferLost(a, why) }
	}
	if len(x.m.Pairs) > 0 {
		a.pair = x.m.PairAt(choice.Prefill, choice.Decode)
		a.pair.Wanted.Add(x.Sum.Arrived)
	}
	return dispatch.Event{Kind: dispatch.EvPlannedPair}
}

// doubles reports whether these engines do work that an engine has begun before for the request. Decode alone in place of a prefill
// engine that has failed does not.
func (x *Exchange) doubles(c policies.Choice) bool {
	switch {
	case x.failed.Unbegun():
		return false
	case x.failed.OfPrefill(), x.failed == dispatch.EvTransferLost:
		return c.Split
	}
	return true
}

// overBudget ends a request whose retry the budget does not allow. The client learns when engines that refused it may be asked again.
func (x *Exchange) overBudget() dispatch.Event {
	x.pause = x.excluded.Soonest()
	return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.RetryBudget}
}

// noEngine handles a choice without an engine: the request waits if one may come back.
func (x *Exchange) noEngine(c policies.Choice) dispatch.Event {
	why, missing := reason.NoEngine, fleet.Decode
	switch c.Reason {
	case policies.NoPair:
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.NoPair}
	case policies.NoPrefill:
		why, missing = reason.NoPrefill, fleet.Prefill
	}
	pause, comes := x.selection.ComesBack(missing)
	if x.pause = pause; !comes {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: why}
	}
	now := time.Now()
	if x.waitsUntil.IsZero() {
		x.waitsUntil = now.Add(x.s.Config.Timeouts.Queue)
		if x.Sum.Attempts > 0 && x.doubles(c) && !x.m.Retries.Retry(now) {
			return x.overBudget()
		}
	}
	left := min(x.waitsUntil.Sub(now), x.due.Sub(now))
	if left <= 0 {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.QueueTimeout}
	}
	x.pause = min(spread(max(pause, backoff(x.waits+1, rand.Uint64()))), left)
	return dispatch.Event{Kind: dispatch.EvPlannedLater}
}

// choose chooses engines that the request may be given to, but for those.
func (x *Exchange) choose(not fleet.Excluded) (policies.Choice, policies.Fleet) {
	if x.bare {
		if c, f := x.chooseFrom(not.With(x.m.Prefill), false); c.Decode >= 0 {
			c.Reason = fleet.NoHandOff
			return c, f
		}
	}
	return x.chooseFrom(not, false)
}

// chooseFrom is choose, with busy also of engines that have asked for no requests now, if no others are left.
func (x *Exchange) chooseFrom(not fleet.Excluded, busy bool) (policies.Choice, policies.Fleet) {
	x.selection.Begin(not, busy)
	q := policies.Request{Model: x.m.Name, PromptTokens: x.b.PromptTokens(), Unsplittable: policies.Reason(x.b.Unsplittable)}
	x.selection.FindPrompt(x.b)
	return x.selection.Choose(q)
}

// pair readies the attempt's pair, or has the owner wait for it.
func (x *Exchange) pair(a *attempt) {
	t := x.m.Connector.Traits()
	if t.Meets {
		a.h.Bootstrap = a.prefill.Engine.Bootstrap.Draw()
	}
	if t.Publishes {
		var ok bool
		if a.h.Prefill, a.h.Decode, ok = x.s.Fleet.Incarnations(a.prefill.Engine, a.decode.Engine); !ok {
			a.prefill.Failure = fleet.ErrNoRecords
			x.post(dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.NoPair})
			return
		}
		a.h.ValidMS = x.s.Config.Timeouts.Request.Milliseconds()
		x.r.Transfers.Sign(x.s.Tickets, &a.h, kvtransfer.ContextOf(x.m.Name, x.Sum.Subject, x.b.CacheSalt()))
		x.r.Report.Transfers.Open(a.h.Transfer, a.prefill.Engine.Name, a.decode.Engine.Name, x.s.Fleet.Size(a.decode.Engine))
		a.landed = x.r.landed(a.h.Transfer, a.decode.Engine)
	}
	// Legs that follow each other need no handshake before prefill is asked.
	if t.Handshakes && t.Mode == dispatch.Together && (!x.r.Pairs.Ready(a.runs()) || !x.setEndpoint(a)) {
		a.parked = true
		return
	}
	x.post(dispatch.Event{Kind: dispatch.EvPaired})
}

// setEndpoint notes where decode finds prefill. It reports false if that is not known: prefill has restarted and no handshake has told it since.
func (x *Exchange) setEndpoint(a *attempt) bool {
	if a.prefill.Engine.Publishes {
		return true
	}
	a.h.Endpoint = a.prefill.Engine.Endpoint.Load()
	return a.h.Endpoint != nil
}

// awaitPair waits for the pair's handshake, unless there is an event.
func (x *Exchange) awaitPair(a *attempt) {
	waiting := new(upstream.Canceler)
	x.r.Cancels.Add(waiting)
	defer waiting.Remove()
	if !x.armInterrupt(waiting) {
		return
	}
	defer x.disarmInterrupt()
	a.parked = false
	timeout, stop := context.WithTimeout(waiting, x.s.Config.Timeouts.Pair)
	defer stop()
	err := x.r.Pairs.Wait(timeout, a.runs())
	if err == nil && x.setEndpoint(a) {
		x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPaired}})
		return
	}
	if !errors.Is(err, context.Canceled) {
		x.r.Log.Warn("pair", "prefill", a.prefill.Engine.Name, "decode", a.decode.Engine.Name, "err", err)
	}
	a.prefill.Failure = err
	x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.PairFailed}})
}
