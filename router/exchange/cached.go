package exchange

import (
	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/report"
)

// predictCached notes what is predicted of the prompt's cached tokens, so that it can be compared with what the engine counts.
func (x *Exchange) predictCached(c policies.Choice) {
	n, byEvents, known := x.selection.Predicted(c)
	x.Sum.PredictedCachedTokens, x.Sum.CachedBy = int32(n), report.CachedNotLookedAt
	switch {
	case byEvents:
		x.Sum.CachedBy = report.CachedByEvents
	case known:
		x.Sum.CachedBy = report.CachedByEstimate
	}
}

// observeCached corrects what is thought of the engines' prefix caches by what became of the request.
func (x *Exchange) observeCached() {
	a := x.cur
	if a == nil || a.noted == nil {
		return
	}
	if x.usage.Counted {
		a.noted.Counted(x.usage.Prompt, int(x.Sum.CountedCachedTokens))
	}
	if x.Sum.Phases.FirstToken > 0 {
		a.noted.Answered(max(x.usage.Output, x.usage.Pieces))
	}
	a.settleNoted()
}

// settleNoted notes which engines did not get the prompt after all: those whose legs have failed before they had it. It may be called twice.
func (a *attempt) settleNoted() {
	if a.noted == nil {
		return
	}
	for role, s := range [...]dispatch.LegState{fleet.Prefill: a.prefill.State(), fleet.Decode: a.decode.State()} {
		switch s {
		case dispatch.LegIdle, dispatch.LegRefused, dispatch.LegRejected, dispatch.LegBroken:
			a.noted.Failed(fleet.Role(role))
		}
	}
	a.noted.Release()
	a.noted = nil
}

// countCached notes what the engine has counted for which cached tokens were predicted.
func (x *Exchange) countCached() {
	x.Sum.CountedCachedTokens = -1
	switch a := x.cur; {
	case a == nil, x.Sum.Continued > 0: // the second engine may have had another part of the prompt
	case !a.split:
		if x.usage.SaysCached {
			x.Sum.CountedCachedTokens = int32(x.usage.Cached)
		}
	case a.prefillAnswered() && a.prefill.Answer.SaysCached():
		x.Sum.CountedCachedTokens = int32(a.prefill.Answer.Cached())
	}
}
