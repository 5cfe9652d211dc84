package exchange

// estimateParts notes how long the parts of the time to the first token that cannot be seen are thought to have taken.
func (x *Exchange) estimateParts(a *attempt) {
	w, decode := a.decode.Work, a.decode.Engine.Forecast()
	if !x.Sum.Stream || w == nil {
		return
	}
	if !a.split {
		x.Sum.Estimate(decode.PromptSeconds(w.Prompt, w.Uncached), 0, 0)
		return
	}
	prefill, uncached := a.prefill.Engine.Forecast(), w.Prompt-int(x.Sum.PredictedCachedTokens)
	if a.prefillAnswered() && a.prefill.Answer.PromptTokens > 0 { // speeds are learned by the tokens that were thought of, which may be others
		n := a.prefill.Answer.PromptTokens
		uncached = w.Prompt * (n - a.prefill.Answer.Cached()) / n
	}
	x.Sum.Estimate(prefill.PromptSeconds(w.Prompt, uncached), x.m.Forecast.MoveSeconds(w.Moves)*x.m.Forecast.HandOff(prefill, decode), decode.StepSeconds())
}
