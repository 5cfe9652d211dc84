package fleet

import (
	"pdrouter/policies"
)

// Shadow is what a second policy would have chosen for a request, without effect.
type Shadow struct {
	// Result is same, other_prefill, other_decode (or both), other_path (a split in place of one engine, or the reverse) or none (no engine).
	Result               string
	Prefill, Decode, Why string
}

// askShadow asks the second policy with the view that the first one had.
func (k *Selection) askShadow(q policies.Request, f policies.Fleet, live policies.Choice) *Shadow {
	ask := func(f policies.Fleet) policies.Choice {
		return k.f.shadow.Choose(q, f, k.drawn) // the same chance, so that a policy does not differ from itself
	}
	c := k.refuseAlone(k.preferWarm(f, ask(f), ask))
	out := &Shadow{Result: "same", Why: c.Why()}
	if c.Split {
		out.Prefill = k.m.Prefill[c.Prefill].Name
	}
	if c.Decode >= 0 {
		out.Decode = k.m.Decode[c.Decode].Name
	}
	switch {
	case c.Decode < 0:
		out.Result = "none"
	case c.Split != live.Split:
		out.Result = "other_path"
	case c.Decode != live.Decode:
		out.Result = "other_decode"
	case c.Split && c.Prefill != live.Prefill:
		out.Result = "other_prefill"
	}
	return out
}

// Shadow is what the second policy would have chosen, the last time that this one has chosen; nil if there is none.
func (k *Selection) Shadow() *Shadow { return k.shadow }

// planners are the policies that look at what is known of engines and requests.
func (f *Fleet) planners() []Planner {
	if f.shadow == nil {
		return []Planner{f.planner}
	}
	return []Planner{f.planner, f.shadow}
}
