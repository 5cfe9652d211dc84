package exchange

import (
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
)

// observeLatency learns how long the engines of a request took. It is called once per request, at its end.
func (x *Exchange) observeLatency(now time.Time) {
	a, s := x.cur, &x.Sum
	if a == nil || s.Attempts == 0 || s.Phases.Plan == 0 {
		return
	}
	tokens := x.b.PromptTokens()
	if s.PromptTokens > 0 {
		tokens = s.PromptTokens
	}
	switch {
	case a.split && a.prefillAnswered() && s.Phases.Prefill > s.Phases.Pair:
		x.s.Fleet.ObserveLatency(x.m, fleet.Prefill, a.prefill.Engine, s.Phases.Prefill-s.Phases.Pair, tokens-s.CachedTokens, now)
		if x.b.Stream && s.Phases.FirstToken > s.Phases.Prefill {
			x.s.Fleet.ObserveLatency(x.m, fleet.Decode, a.decode.Engine, s.Phases.FirstToken-s.Phases.Prefill, tokens, now)
		}
	case x.m.Connector.Traits().Mode == dispatch.Alone && x.b.Stream && s.Phases.FirstToken > 0:
		x.s.Fleet.ObserveLatency(x.m, fleet.Decode, a.decode.Engine, s.Phases.FirstToken-s.Phases.Plan, tokens-s.CachedTokens, now)
	}
}
