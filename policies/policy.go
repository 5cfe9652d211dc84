package policies

import "strings"

// Policy is a validated Config, ready to choose. It is safe for concurrent use and never changes.
type Policy struct {
	rules []rule // the last one matches every model
}

// defaultName is what the default rule is called; no other rule can have this name.
const defaultName = "default"

type rule struct {
	name      string
	models    []string
	minPrompt int
	reject    bool
	after     string
	prefill   picker
	decode    picker
}

// New returns the policy of cfg, or every mistake in it, joined.
func New(cfg Config) (*Policy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p := &Policy{}
	for _, r := range cfg.Rules {
		p.rules = append(p.rules, newRule(r.Name, r.Models, r.Choosing))
	}
	p.rules = append(p.rules, newRule(defaultName, []string{"*"}, cfg.Default))
	return p, nil
}

// Default returns the policy of an empty Config: every request that can be split is split, each role by least_load.
func Default() *Policy {
	return &Policy{rules: []rule{newRule(defaultName, []string{"*"}, Config{}.withDefaults().Default)}}
}

// newRule takes values that were validated and completed.
func newRule(name string, models []string, c Choosing) rule {
	prefill, _ := parsePicker(c.Prefill.Policy)
	decode, _ := parsePicker(c.Decode.Policy)
	return rule{
		name:      name,
		models:    models,
		minPrompt: *c.Split.MinPromptTokens,
		reject:    c.Split.OnNoPrefill == reject,
		after:     c.AfterFailure,
		prefill:   prefill,
		decode:    decode,
	}
}

// Rule returns the name of the rule that decides for the model: a rule's name, or "default".
func (p *Policy) Rule(model string) string { return p.match(model).name }

// AfterFailure returns what the model's rule says of streams whose decode engine fails: Cut, Continue or ContinueAlways.
func (p *Policy) AfterFailure(model string) string { return p.match(model).after }

// Prefixes says of either role whether the model's rule looks at what engines have of a prompt: only there it matters what
// Engine.Cached and Engine.Backlog are.
func (p *Policy) Prefixes(model string) (prefill, decode bool) {
	r := p.match(model)
	return r.prefill == prefix, r.decode == prefix
}

// Rules returns the names of the rules in the order they are tried, but for the default rule.
func (p *Policy) Rules() []string {
	names := make([]string, 0, len(p.rules)-1)
	for _, r := range p.rules[:len(p.rules)-1] {
		names = append(names, r.name)
	}
	return names
}

func (p *Policy) match(model string) *rule {
	last := len(p.rules) - 1
	for i := range p.rules[:last] {
		for _, m := range p.rules[i].models {
			if prefix, open := strings.CutSuffix(m, "*"); m == model || open && strings.HasPrefix(model, prefix) {
				return &p.rules[i]
			}
		}
	}
	return &p.rules[last]
}

// Choose decides who serves q. It chooses only engines that are usable, and a pair only if f.Pairable allows it.
// It allocates nothing, keeps nothing and is safe for concurrent use.
func (p *Policy) Choose(q Request, f Fleet, d Draw) Choice {
	r := p.match(q.Model)
	reason := Split
	switch {
	case q.Unsplittable != "":
		reason = q.Unsplittable
	case q.PromptTokens < r.minPrompt:
		reason = ShortPrompt
	}
	w := why{rule: r, tokens: q.PromptTokens}
	if reason == Split {
		if c, ok := r.pair(f, d, w); ok {
			return c
		}
		reason = missing(f)
	}
	c := Choice{Prefill: -1, Decode: -1, Reason: reason, why: w}
	if reason == NoDecode || r.reject && (reason == NoPrefill || reason == NoPair) {
		return c
	}
	alone := candidates{engines: f.Decode}
	c.Decode, c.why.decode = r.decode.pick(alone, d.Turn, mix(d.Random))
	if c.Decode < 0 {
		c.Reason = NoDecode
	}
	return c
}

// pair chooses the prefill engine among those that have a partner, then the decode engine among its partners.
func (r *rule) pair(f Fleet, d Draw, w why) (Choice, bool) {
	from := candidates{engines: f.Prefill, partners: f.Decode, pairable: f.Pairable}
	p, pw := r.prefill.pick(from, d.Turn, d.Random)
	if p < 0 {
		return Choice{}, false
	}
	to := candidates{engines: f.Decode, pairable: f.Pairable, partner: p, paired: true}
	// Both roles in step would only ever form the pairs of one diagonal; the shift visits them all in turn.
	turn := d.Turn
	if all := lcm(from.count(), to.count()); all > 0 {
		turn += d.Turn / all
	}
	n, dw := r.decode.receiving().pick(to, turn, mix(d.Random))
	if n < 0 {
		return Choice{}, false
	}
	w.prefill, w.decode = pw, dw
	return Choice{Split: true, Prefill: p, Decode: n, Reason: Split, why: w}, true
}

// missing says why no pair was found.
func missing(f Fleet) Reason {
	decode := candidates{engines: f.Decode}
	prefill := candidates{engines: f.Prefill}
	switch {
	case decode.count() == 0:
		return NoDecode
	case prefill.count() == 0:
		return NoPrefill
	default:
		return NoPair
	}
}
