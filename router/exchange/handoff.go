package exchange

import (
	"time"

	"pdrouter/router/handoff"
)

// observeHandOff notes how long after prefill's answer the first token of a stream has come.
func (x *Exchange) observeHandOff(a *attempt, at time.Time) {
	p := &x.Sum.Phases
	if !a.split || !x.Sum.Stream || p.Prefill == 0 || p.DecodeFirst() <= p.Prefill {
		return
	}
	o := handoff.HandOff{Model: x.m.Name, Prefill: a.prefill.Engine.Name, Decode: a.decode.Engine.Name, Tokens: x.b.PromptTokens(), Took: p.DecodeFirst() - p.Prefill}
	if n := a.prefill.Answer.PromptTokens; n > 0 {
		o.Tokens = n
	}
	if computed := o.Tokens - a.prefill.Answer.Cached(); computed > 0 {
		o.Computing = time.Duration(float64(p.Prefill-p.Pair) * float64(o.Tokens) / float64(computed))
	}
	seen := x.all.HandOffs.FirstToken(at, o)
	x.Sum.Late = seen.Late
	x.Sum.EstimateTransfer(seen.Path)
}

// countHanded notes how many of the prompt's tokens decode says that it did not compute. SGLang's decode repeats prefill's count.
func (x *Exchange) countHanded() {
	x.Sum.DecodeCachedTokens = -1
	if a := x.cur; a != nil && a.split && x.Sum.Continued == 0 && !x.m.Connector.Traits().RequiresSplit && x.usage.Counted && x.usage.SaysCached {
		x.Sum.DecodeCachedTokens = x.usage.Held
	}
}

// observeRecompute notes whether decode has computed a prompt whose KV it was to receive.
func (x *Exchange) observeRecompute(now time.Time) {
	a, t := x.cur, x.m.Connector.Traits()
	if a == nil || !a.split || x.Sum.Status != 200 || x.Sum.Continued > 0 || t.RequiresSplit {
		return
	}
	decode := a.decode.Engine.Name
	switch {
	case x.Sum.Phases.FirstToken > 0 && t.Publishes && x.all.Report.Transfers.Failed(a.h.Transfer):
		x.all.HandOffs.Answered(now, decode)
	case x.Sum.DecodeCachedTokens >= 0:
		x.all.HandOffs.Counted(now, decode, x.usage.Prompt, int(x.Sum.DecodeCachedTokens))
	}
}
