package forecast

import (
	"testing"

	"pdrouter/policies"
)

// TestSlowFirstPrompt: an engine whose first prompt takes half a minute, as it warms up, gets its part of the requests again.
func TestSlowFirstPrompt(t *testing.T) {
	m := NewModel()
	policy := policies.Default()
	const engines, every, tokens = 2, .5, 1000
	all := []*Engine{m.NewEngine(), m.NewEngine()}
	f := policies.Fleet{Forecast: &policies.Forecast{Decode: make([]policies.Work, engines)}, Decode: make([]policies.Engine, engines)}
	for i := range f.Decode {
		f.Decode[i] = policies.Engine{Name: string(rune('a' + i)), Usable: true}
	}
	type ending struct {
		at float64
		of int
		l  *Leg
	}
	var under []ending
	given := [engines]int{}
	warm := [engines]bool{}
	for n := range 800 {
		now := float64(n) * every
		kept := under[:0]
		for _, u := range under {
			if u.at > now {
				kept = append(kept, u)
				continue
			}
			all[u.of].FirstToken(u.l, u.at)
			all[u.of].End(u.l, u.at)
		}
		under = kept
		for i, e := range all {
			f.Forecast.Decode[i] = e.Work(now)
		}
		f.Forecast.Demand = m.Demand(now)
		c := policy.Choose(policies.Request{PromptTokens: tokens, Unsplittable: policies.Aggregated}, f, policies.Draw{Turn: uint64(n)})
		if n >= 600 {
			given[c.Decode]++
		}
		l := &Leg{Prompt: tokens, Uncached: tokens, Answers: true, Late: .05}
		all[c.Decode].Begin(l, now)
		took := .1
		if !warm[c.Decode] && c.Decode == 0 {
			warm[c.Decode], took = true, 30
		}
		under = append(under, ending{now + took, c.Decode, l})
	}
	if given[0] < 50 || given[1] < 50 {
		t.Errorf("of the latest 200 requests the engines got %v; want at least 50 each", given)
	}
}
