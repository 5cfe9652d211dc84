package policies

import (
	"math"
	"slices"
	"strings"
)

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
	cost      bool // the path is chosen by its price; else each engine by its role
	objective Objective
	prefill   *role
	decode    *role
	receiving *role // how a decode engine is chosen that is handed the prompt's KV
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

// Default returns the policy of an empty Config: every request takes the path with the lowest price.
func Default() *Policy {
	return &Policy{rules: []rule{newRule(defaultName, []string{"*"}, Config{}.withDefaults().Default)}}
}

// newRule takes values that were validated and completed.
func newRule(name string, models []string, c Choosing) rule {
	return rule{
		name:      name,
		models:    models,
		minPrompt: *c.Split.MinPromptTokens,
		reject:    c.Split.OnNoPrefill == reject,
		after:     c.AfterFailure,
		cost:      c.Policy == byCost,
		objective: Objective{TTFT: c.Objective.TTFT.Seconds(), ITL: c.Objective.ITL.Seconds(), Tolerance: *c.Objective.Tolerance, LateWeight: *c.Objective.LateWeight},
		prefill:   newRole(c.Prefill),
		decode:    newRole(c.Decode),
		receiving: newRole(receiving(c.Decode)),
	}
}

// receiving is how a decode engine is chosen that is handed the KV of a prompt instead of computing it. What its cache holds spares it
// nothing but a part of the transfer, so prefix is least_load there.
func receiving(decode Role) Role {
	if decode.Policy == "prefix" {
		decode.Policy = "least_load"
	}
	return decode
}

// Rule returns the name of the rule that decides for the model: a rule's name, or "default".
func (p *Policy) Rule(model string) string { return p.match(model).name }

// AfterFailure returns what the model's rule says of streams whose decode engine fails: Cut, Continue or ContinueAlways.
func (p *Policy) AfterFailure(model string) string { return p.match(model).after }

// Prefixes says of either role whether the model's rule looks at what engines have of a prompt: only there it matters what
// Engine.Cached and Engine.Backlog are.
func (p *Policy) Prefixes(model string) (prefill, decode bool) {
	r := p.match(model)
	return r.cost || r.prefill.prefix, r.cost || r.decode.prefix
}

// Costs reports whether the model's rule prices paths: only there it matters what Fleet.Forecast is.
func (p *Policy) Costs(model string) bool { return p.match(model).cost }

// Objective returns what requests for the model are to keep, unless they say so themselves.
func (p *Policy) Objective(model string) Objective { return p.match(model).objective }

// Sessions reports whether the model's rule looks at the session of a request: only there it matters what Request.Session is.
func (p *Policy) Sessions(model string) bool {
	r := p.match(model)
	return r.prefill.session || r.decode.session
}

// Adapters reports whether the model's rule looks at which adapters engines have loaded: only there it matters what Engine.Adapter is.
func (p *Policy) Adapters(model string) bool {
	r := p.match(model)
	return r.prefill.adapter || r.decode.adapter
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
func (p *Policy) Choose(q Request, f Fleet, d Draw) Choice { return p.choose(q, f, d, nil) }

func (p *Policy) choose(q Request, f Fleet, d Draw, told *explainer) Choice {
	r := p.match(q.Model)
	reason := Split
	switch {
	case q.Unsplittable != "":
		reason = q.Unsplittable
	case q.PromptTokens < r.minPrompt && !q.MustSplit && !q.AnyLength:
		reason = ShortPrompt
	}
	w := why{rule: r, tokens: int32(min(q.PromptTokens, math.MaxInt32))}
	if r.cost {
		return r.cheapest(&q, f, d, w, reason, told)
	}
	if reason == Split {
		if c, ok := r.pair(&q, f, d, w, told); ok {
			return c
		}
		reason = missing(f)
	}
	c := Choice{Prefill: -1, Decode: -1, Reason: reason, why: w}
	if reason == NoDecode || r.reject && (reason == NoPrefill || reason == NoPair) {
		return c
	}
	told.begin("decode", r.decode, f.Decode, "")
	alone := candidatesOf(&q, Draw{d.Turn, mix(d.Random)}, f.Decode, told, everyEngine)
	c.Decode, c.why.decode = r.decode.choose(alone)
	alone.end()
	if c.Decode < 0 {
		c.Reason = NoDecode
	}
	return c
}

// pair chooses the prefill engine among those that have a partner, then the decode engine among its partners.
func (r *rule) pair(q *Request, f Fleet, d Draw, w why, told *explainer) (Choice, bool) {
	told.begin("prefill", r.prefill, f.Prefill, "no decode engine that may be used pairs with it")
	from := candidatesOf(q, d, f.Prefill, told, func(p int) bool {
		for n := range f.Decode {
			if f.Decode[n].Usable && f.pairable(p, n) {
				return true
			}
		}
		return false
	})
	defer from.end()
	prefills := from.Len()
	for {
		p, pw := r.prefill.choose(from)
		if p < 0 {
			return Choice{}, false
		}
		if n, dw := r.partner(q, f, d, p, prefills, told); n >= 0 {
			w.prefill, w.decode = pw, dw
			return Choice{Split: true, Prefill: p, Decode: n, Reason: Split, why: w}, true
		}
		told.untake("no decode engine that pairs with it passes the filters")
		from.drop(p)
	}
}

// partner chooses the decode engine for a prefill engine; -1 if there is none.
func (r *rule) partner(q *Request, f Fleet, d Draw, p, prefills int, told *explainer) (int, picked) {
	told.begin("decode", r.receiving, f.Decode, "it does not pair with the prefill engine")
	to := candidatesOf(q, Draw{d.Turn, mix(d.Random)}, f.Decode, told, func(n int) bool { return f.pairable(p, n) })
	defer to.end()
	// Both roles in step would only ever form the pairs of one diagonal; the shift visits them all in turn.
	if all := lcm(prefills, to.Len()); all > 0 {
		to.Draw.Turn += d.Turn / all
	}
	to.Partner = &f.Prefill[p]
	if f.Troubled != nil {
		to.troubled = func(d int) bool { return f.Troubled(p, d) }
	}
	return r.receiving.choose(to)
}

func (f Fleet) pairable(p, d int) bool { return f.Pairable == nil || f.Pairable(p, d) }

// everyEngine lets every engine be a candidate.
func everyEngine(int) bool { return true }

// missing says why no pair was found.
func missing(f Fleet) Reason {
	usable := func(e Engine) bool { return e.Usable }
	switch {
	case !slices.ContainsFunc(f.Decode, usable):
		return NoDecode
	case !slices.ContainsFunc(f.Prefill, usable):
		return NoPrefill
	default:
		return NoPair
	}
}

// lcm returns the least common multiple; 0 if one of them is 0.
func lcm(a, b int) uint64 {
	if a == 0 || b == 0 {
		return 0
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return uint64(a / x * b)
}
