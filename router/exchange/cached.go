package exchange

import (
	"pdrouter/policies"
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
