package config

import "fmt"

// Placement is what a policy may use of an engine: how much of the requests it is to get, where it is, and what it is meant for.
type Placement struct {
	// Weight is the part of the requests that the engine gets, beside others of its role with weight 1, whatever the policy: with 0.1 a
	// canary gets a tenth of what each of them gets. More than 0, at most 1; default 1.
	Weight *float64 `yaml:"weight"`
	// Zone is where the engine is, for the policies' filter and scorer zone; default: not known.
	Zone string `yaml:"zone"`
	// PromptTokens is which prompts the engine is meant for, by their length, for the policies' filter prompt_tokens; default: all.
	PromptTokens TokenRange `yaml:"prompt_tokens"`
}

// TokenRange is a range of lengths.
type TokenRange struct {
	// Min is the smallest number of tokens; default 0.
	Min int `yaml:"min"`
	// Max is the largest number of tokens; default: no bound.
	Max int `yaml:"max"`
}

func (p Placement) validatePlacement(at string, v *faults) {
	if p.Weight != nil && !(*p.Weight > 0 && *p.Weight <= 1) {
		v.add(at+".weight", fmt.Sprintf("is %v", *p.Weight), "more than 0, at most 1; use drain for none")
	}
	r := p.PromptTokens
	if r.Min < 0 {
		v.add(at+".prompt_tokens.min", fmt.Sprintf("is %d", r.Min), "0 or more")
	}
	if r.Max < 0 || r.Max > 0 && r.Max < r.Min {
		v.add(at+".prompt_tokens.max", fmt.Sprintf("is %d", r.Max), "min or more, or nothing for no bound")
	}
}
