package exchange

import (
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
)

// Where the model's policy prices paths, it is told what becomes of requests: legs tell what their engines have to do (leg.Work), and the
// exchange when first tokens come.

// forecastDecode notes that the attempt's decode engine is to give the answer to a prompt, and how many of its tokens it has to compute.
func (x *Exchange) forecastDecode(a *attempt, prompt, uncached int) {
	if x.m.Forecast == nil {
		return
	}
	if x.Sum.Attempts == 1 {
		x.m.Forecast.Arrived(fleet.Seconds(x.selection.Now))
	}
	w := leg.Work{Prompt: prompt, Late: x.m.LongGap()}
	if a.split {
		w.Moves = prompt - x.selection.Cached(a.decode.Engine)
	} else {
		w.Uncached = max(1, uncached)
	}
	a.decode.Forecast(w, true, !a.unstreamed)
}

// forecastPrefill notes that the attempt's prefill engine is to compute the prompt.
func (a *attempt) forecastPrefill() {
	if w := a.decode.Work; w != nil {
		a.prefill.Forecast(leg.Work{Prompt: w.Prompt, Uncached: max(1, int(a.prefill.Unread.Load()))}, false, true)
	}
}

// observeFirstToken learns from the time of the first token of a stream.
func (x *Exchange) observeFirstToken(a *attempt) {
	if x.m.Forecast == nil || !x.Sum.Stream || x.Sum.Attempts != 1 {
		return
	}
	took := x.Sum.Phases.FirstToken - x.Sum.Phases.Plan
	x.Sum.Predicted = x.choice.TTFT
	x.m.Forecast.Predicted(float64(x.choice.TTFT), took.Seconds())
	if w := a.decode.Work; w != nil && a.split && x.Sum.Phases.Prefill > 0 && x.Sum.Phases.Prefill < x.Sum.Phases.FirstToken {
		x.m.Forecast.Moved(w.Moves, (x.Sum.Phases.FirstToken - x.Sum.Phases.Prefill).Seconds())
	}
}

// observeAnswer learns how long the request's answer was. It is called once, at its end.
func (x *Exchange) observeAnswer() {
	if tokens := max(x.usage.Output, x.usage.Pieces); x.m.Forecast != nil && tokens > 0 {
		x.m.Forecast.Answered(tokens)
	}
}
