package exchange

import (
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/reason"
	"pdrouter/router/report"
)

// plan chooses the engines of the next attempt.
func (x *Exchange) plan() dispatch.Event {
	retry, waited := x.Sum.Attempts > 0, x.pause > 0
	x.pause = 0
	choice, f := x.selectFirst()
	if choice.Move > 0 {
		if x.moveFirst(choice) {
			return dispatch.Event{Kind: dispatch.EvPlannedLater}
		}
		choice, f = x.selectEngines(x.excluded)
	}
	switch {
	case choice.Decode < 0 && len(x.excluded) > 0:
		var e dispatch.Event
		var late bool
		if choice, f, e, late = x.selectFailed(waited); late {
			if e.Kind == dispatch.EvPlannedLater && !waited && !x.m.Retries.Retry(time.Now()) {
				return x.overBudget()
			}
			return e
		}
	case retry && !waited && x.doubles(choice) && !x.m.Retries.Retry(time.Now()):
		if choice, f = x.selectAlone(x.excluded); choice.Decode < 0 || x.doubles(choice) {
			return x.overBudget()
		}
	}
	if retry || x.waits > 0 {
		x.Sum.Phases.Retry = x.selection.Now.Sub(x.Sum.Arrived)
	}
	x.Sum.Phases.Plan = time.Since(x.Sum.Arrived)
	x.Sum.Reason, x.Sum.Prefill, x.Sum.Decode, x.Sum.TokenIDs = string(choice.Reason), "", "", report.TokensNone
	x.Sum.Shadow = (*report.Shadow)(x.selection.Shadow())
	if choice.Decode < 0 {
		return x.noEngine(choice)
	}
	x.waitsUntil = time.Time{}
	a := &attempt{split: choice.Split, unstreamed: !x.b.Stream}
	a.h.Shape = x.b.Shape
	a.h.Draw()
	x.choice, x.Sum.Phases.Prefill = choice, 0
	x.makeCurrent(a)
	x.Sum.Decode = f.Decode[choice.Decode].Name
	x.predictCached(choice)
	x.traceChoice()
	toPrefill, toDecode, noted := x.selection.NotePrompt(choice) // 0, 0 and nil unless the policy looks at prefixes
	a.noted = noted
	if x.turn != nil {
		x.turn.trace = x.selection.Trace()
	}
	a.prefill.Unread.Store(int64(toPrefill))
	a.decode.Unread.Store(int64(toDecode))
	a.decode.Join(x.all.Cancels, x.m.Decode[choice.Decode]) // it counts with its engine from now on, as the pair may have to be waited for
	x.forecastDecode(a, x.selection.PromptTokens(x.b.PromptTokens()), toDecode)
	if !choice.Split {
		return dispatch.Event{Kind: dispatch.EvPlannedAlone}
	}
	x.Sum.Prefill = f.Prefill[choice.Prefill].Name
	x.Sum.TransferID = a.h.Transfer
	a.prefill.Engine = x.m.Prefill[choice.Prefill]
	a.decode.CollectsFrom(a.prefill.Engine)
	x.planTokens(a)
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
	x.pause = min(spread(max(pause, backoff(int(x.waits)+1, rand.Uint64()))), left)
	return dispatch.Event{Kind: dispatch.EvPlannedLater}
}

// selectEngines selects engines for the request, without the excluded. If prefill has handed nothing off, it prefers decode alone.
func (x *Exchange) selectEngines(not fleet.Excluded) (policies.Choice, policies.Fleet) {
	if x.noHandOff {
		if c, f := x.selectAlone(not); c.Decode >= 0 {
			return c, f
		}
	}
	return x.selectWithout(not, false)
}

// selectWithout asks the fleet once. With busy it may answer with engines that have asked for no requests now, if no others are left.
func (x *Exchange) selectWithout(not fleet.Excluded, busy bool) (policies.Choice, policies.Fleet) {
	x.selection.Begin(not, busy)
	return x.choose()
}

// selectAlone asks the fleet once, for engines that serve the request alone.
func (x *Exchange) selectAlone(not fleet.Excluded) (policies.Choice, policies.Fleet) {
	x.selection.Begin(not, false)
	x.selection.WithoutPrefill()
	c, f := x.choose()
	if x.noHandOff && c.Decode >= 0 {
		c.Reason = fleet.NoHandOff
	}
	return c, f
}

func (x *Exchange) choose() (policies.Choice, policies.Fleet) {
	q := policies.Request{Model: x.m.Name, PromptTokens: x.b.PromptTokens(), Unsplittable: policies.Reason(x.b.Unsplittable), Objective: fleet.ObjectiveOf(x.b)}
	x.selection.FindPrompt(x.b, x.tenant) // does nothing unless the policy looks at prefixes
	x.selection.OfferMoves(x.moves())
	return x.selection.Choose(q)
}
