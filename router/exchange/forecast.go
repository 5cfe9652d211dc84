package exchange

import (
	"cmp"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/leg"
)

// The model's forecast is told what becomes of requests, whatever the policy is: legs tell what their engines have to do (leg.Work), and the
// exchange when first tokens come.

// forecastDecode notes that the attempt's decode engine is to give the answer to a prompt, and how many of its tokens it has to compute; 0 if that is
// not known, as the policy does not look at prefixes.
func (x *Exchange) forecastDecode(a *attempt, prompt, uncached int) {
	if x.Sum.Attempts == 1 {
		x.m.Forecast.Arrived(fleet.Seconds(x.selection.Now))
	}
	var w leg.Work
	w.Prompt, w.Answers, w.Silent, w.Late = prompt, true, a.unstreamed, x.m.LongGap()
	if a.split {
		w.Moves = prompt - x.selection.Cached(a.decode.Engine)
	} else {
		w.Guessed, w.Uncached = uncached == 0, cmp.Or(uncached, x.m.Forecast.Uncached(prompt))
	}
	a.decode.Forecast(&w)
}

// forecastPrefill notes that the attempt's prefill engine is to compute the prompt.
func (x *Exchange) forecastPrefill(a *attempt) {
	if w := a.decode.Work; w != nil {
		var p leg.Work
		uncached := int(a.prefill.Unread.Load())
		p.Prompt, p.Guessed, p.Uncached = w.Prompt, uncached == 0, cmp.Or(uncached, x.m.Forecast.Uncached(w.Prompt))
		a.prefill.Forecast(&p)
	}
}

// observeTTFT learns from the time of the first token of a stream.
func (x *Exchange) observeTTFT() {
	if x.Sum.Stream {
		x.m.ObserveTTFT(x.Sum.Arrived.Add(x.Sum.Phases.FirstToken), x.Sum.Phases.FirstToken)
	}
}

// observeDecodeFirst learns from the time of decode's first token of a stream, which is what is predicted.
func (x *Exchange) observeDecodeFirst(a *attempt, at time.Time) {
	a.noted.Arrived()
	x.observeHandOff(a, at)
	if !x.Sum.Stream || x.Sum.Attempts != 1 {
		return
	}
	decoded, prefilled := x.Sum.Phases.DecodeFirst(), x.Sum.Phases.Prefill
	x.Sum.Predicted = x.choice.TTFT
	x.m.Forecast.Predicted(float64(x.choice.TTFT), (decoded - x.Sum.Phases.Plan).Seconds())
	if w := a.decode.Work; w != nil && a.split && prefilled > 0 && prefilled < decoded {
		x.m.Forecast.Moved(fleet.Seconds(at), a.prefill.Engine.Forecast(), a.decode.Engine.Forecast(), w.Moves, (decoded - prefilled).Seconds())
	}
}

// observeAnswer learns how long the request's answer was. It is called once, at its end.
func (x *Exchange) observeAnswer(now time.Time) {
	tokens := max(x.usage.Output, x.usage.Pieces)
	if tokens <= 0 {
		return
	}
	x.m.Forecast.Answered(tokens)
	if first := x.Sum.Phases.FirstToken; x.Sum.Stream && tokens > 1 {
		x.m.ObserveITL(now, (now.Sub(x.Sum.Arrived)-first)/time.Duration(tokens-1))
	}
}
