package policies

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"pdrouter/internal/field"
)

// Config is a policy as it is written in YAML. It can stand in a file of its own or as a section of another.
type Config struct {
	// Rules are tried from the first to the last; the first that names the request's model decides.
	Rules []Rule `yaml:"rules"`
	// Default decides for every other model, and gives each rule the values that the rule leaves out.
	Default Choosing `yaml:"default"`
}

// Rule is how the engines are chosen for the models it names.
type Rule struct {
	Name     string   `yaml:"name"`   // required, for people: it stands in messages
	Models   []string `yaml:"models"` // names as clients write them; a trailing * matches any rest
	Choosing `yaml:",inline"`
}

// Choosing is how a request's engines are chosen.
type Choosing struct {
	// Policy is cost or roles. With cost every path that the request can take is priced, decode alone or any pair, and the cheapest is taken, so
	// that as many requests as possible keep their objective; of prefill and decode only filters matter then. With roles every prompt that split
	// allows is split, and the engine of each role is chosen on its own, as prefill and decode say. Default: roles if this rule or default has
	// the section split, or a policy, scorers or a picker of prefill or decode; else cost.
	Policy string `yaml:"policy"`
	// Objective is what requests are to keep. The policy cost chooses by it, and with every policy scaling signals and alerts compare with it.
	Objective ObjectiveRule `yaml:"objective"`
	Split     SplitRule     `yaml:"split"`
	// Prefill is how the prefill engine is chosen. The name of a policy alone is short for the section: "prefill: round_robin".
	Prefill Role `yaml:"prefill"`
	// Decode is how the decode engine is chosen, or the engine of connector none; written as prefill is.
	Decode Role `yaml:"decode"`
	// AfterFailure says what happens if decode fails when the client has part of its stream. "cut" (default): the stream ends with an error.
	// "continue": another decode engine goes on from the tokens already sent, where temperature is 0, so that the text is what one engine
	// would have said. "continue_always": also where it is not.
	AfterFailure string `yaml:"after_failure"`
}

// ObjectiveRule is what requests are to keep.
type ObjectiveRule struct {
	// TTFT is the time to the first token; default 2s.
	TTFT *time.Duration `yaml:"ttft"`
	// ITL is the time between tokens: in the mean of an answer, and of a hundred tokens at most one is to come later; default 50ms.
	ITL *time.Duration `yaml:"itl"`
	// Tolerance is by which part of an objective predicted times are thought to be wrong, above 0 and at most 1; default 0.05. With more of it paths
	// with a reserve are preferred.
	Tolerance *float64 `yaml:"tolerance"`
	// LateWeight is what each further ttft counts that passes before a first token, beside 1 for a request that misses its objective, 0 to 1;
	// default 0.005. With more of it the longest prompts wait less under overload, and fewer requests keep their objective.
	LateWeight *float64 `yaml:"late_weight"`
}

// SplitRule says which requests are served by two engines.
type SplitRule struct {
	// MinPromptTokens is the smallest prompt, in tokens, that is worth a hand-off; default 0: every prompt.
	MinPromptTokens *int `yaml:"min_prompt_tokens"`
	// OnNoPrefill says what happens if no prefill engine may be used, or none that can pair with a usable
	// decode engine: "aggregate" (default) or "reject".
	OnNoPrefill string `yaml:"on_no_prefill"`
}

// Role is how one engine of a role is chosen among those that may be used.
type Role struct {
	// Policy is round_robin, random, least_load (default), power_of_two, prefix or session. prefix is the engine that is thought to have most of
	// the prompt in its prefix cache, unless others have much less to do; where a decode engine is handed the prompt's KV by a prefill
	// engine, prefix is least_load. session is the home of the request's session, unless others have far fewer requests in flight.
	Policy string `yaml:"policy"`
	// Filters leave engines out before the policy chooses.
	Filters []Part `yaml:"filters"`
	// Scorers rate the engines, in place of a policy: each gives 0 to 1, times its weight, and the picker takes one by the sum.
	Scorers []Part `yaml:"scorers"`
	// Picker is best (default), the engine with the highest sum; power_of_two, the higher of two that are drawn; weighted_random, with odds in
	// proportion to the sum; round_robin or random.
	Picker string `yaml:"picker"`
}

// Part is a filter or a scorer. Its name alone is short for the section: "scorers: [load]".
type Part struct {
	// Name of a filter is ahead (engines that have fewer than requests more in flight than the one with the fewest), prompt_tokens (engines
	// that are meant for prompts of this length) or zone. Name of a scorer is load (fewest requests in flight), backlog (fewest prompt tokens
	// to compute), prefix (share of the prompt that is cached), least_work (as the policy prefix), session (the home of the request's
	// session), lora (engines that have the request's LoRA adapter loaded) or zone.
	Name string `yaml:"name"`
	// Weight is of scorers; default 1.
	Weight *float64 `yaml:"weight"`
	// Strict is of filters: engines that do not pass are never chosen. If there is no other, the request waits for one that may come back, or is
	// answered with 503 no_engine. Default false: if no engine passes, the filter is left out.
	Strict bool `yaml:"strict"`
	// Zone is of zone: which one; default: for a decode engine the zone of the chosen prefill engine, else all zones.
	Zone string `yaml:"zone"`
	// Requests is of ahead; required there.
	Requests int `yaml:"requests"`
}

// UnmarshalYAML reads a part, or its short form: its name alone.
func (p *Part) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&p.Name) == nil {
		return nil
	}
	type section Part // without this method
	return unmarshal((*section)(p))
}

// UnmarshalYAML reads a role, or its short form: the name of its policy alone.
func (r *Role) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&r.Policy) == nil {
		return nil
	}
	type section Role // without this method
	return unmarshal((*section)(r))
}

// The values of Choosing.AfterFailure.
const (
	Cut            = "cut"
	Continue       = "continue"
	ContinueAlways = "continue_always"
)

// The values of Choosing.Policy.
const (
	byRoles = "roles"
	byCost  = "cost"
)

// The values of SplitRule.OnNoPrefill.
const (
	aggregate = "aggregate"
	reject    = "reject"
)

// WithDefaults returns the configuration with everything that it leaves out: in rules what default says, in default what the comments above say.
func (c Config) WithDefaults() Config {
	c = c.withDefaults()
	c.Default.filtersAlone()
	for i := range c.Rules {
		c.Rules[i].filtersAlone()
	}
	return c
}

// filtersAlone leaves out what does not matter for the policy cost.
func (c *Choosing) filtersAlone() {
	if c.Policy == byCost {
		c.Prefill, c.Decode = Role{Filters: c.Prefill.Filters}, Role{Filters: c.Decode.Filters}
	}
}

func (c Config) withDefaults() Config {
	rules := make([]Rule, len(c.Rules))
	for i, r := range c.Rules {
		r.Choosing = r.or(c.Default).withDefaults()
		rules[i] = r
	}
	c.Rules, c.Default = rules, c.Default.withDefaults()
	return c
}

func (c Choosing) withDefaults() Choosing {
	if c.Policy == "" {
		c.Policy = byCost
		if c.Split != (SplitRule{}) || c.Prefill.chosen() || c.Decode.chosen() { // what is written holds
			c.Policy = byRoles
		}
	}
	zero, ttft, itl, tolerance, lateWeight := 0, 2*time.Second, 50*time.Millisecond, .05, .005
	return c.or(Choosing{
		Split:   SplitRule{MinPromptTokens: &zero, OnNoPrefill: aggregate},
		Prefill: Role{Policy: "least_load"},
		Decode:  Role{Policy: "least_load"},

		Objective:    ObjectiveRule{TTFT: &ttft, ITL: &itl, Tolerance: &tolerance, LateWeight: &lateWeight},
		AfterFailure: Cut,
	})
}

// or fills what c leaves out from d.
func (c Choosing) or(d Choosing) Choosing {
	if c.Split.MinPromptTokens == nil {
		c.Split.MinPromptTokens = d.Split.MinPromptTokens
	}
	if c.Split.OnNoPrefill == "" {
		c.Split.OnNoPrefill = d.Split.OnNoPrefill
	}
	if c.AfterFailure == "" {
		c.AfterFailure = d.AfterFailure
	}
	switch {
	case c.Policy != "":
	case c.Prefill.chosen() || c.Decode.chosen(): // it says how
		c.Policy = byRoles
	default:
		c.Policy = d.Policy
	}
	if c.Objective.TTFT == nil {
		c.Objective.TTFT = d.Objective.TTFT
	}
	if c.Objective.ITL == nil {
		c.Objective.ITL = d.Objective.ITL
	}
	if c.Objective.Tolerance == nil {
		c.Objective.Tolerance = d.Objective.Tolerance
	}
	if c.Objective.LateWeight == nil {
		c.Objective.LateWeight = d.Objective.LateWeight
	}
	c.Prefill, c.Decode = c.Prefill.or(d.Prefill), c.Decode.or(d.Decode)
	return c
}

// chosen reports whether r says how the engine is chosen.
func (r Role) chosen() bool { return r.Policy != "" || len(r.Scorers) > 0 || r.Picker != "" }

// or fills what r leaves out from d: how the engine is chosen as a whole, and the filters as a whole.
func (r Role) or(d Role) Role {
	if !r.chosen() {
		r.Policy, r.Scorers, r.Picker = d.Policy, d.Scorers, d.Picker
	}
	if r.Filters == nil {
		r.Filters = d.Filters
	}
	return r
}

// Validate reports every mistake at once, joined; each message begins with the dotted key it is about.
// Keys that are left out are no mistake where they have a default.
func (c Config) Validate() error {
	errs := []error{c.Default.validate("default")}
	names := map[string]int{}
	for i, r := range c.Rules {
		at := fmt.Sprintf("rules[%d]", i)
		if first, taken := names[r.Name]; taken && r.Name != "" {
			errs = append(errs, field.Errorf(at+".name", "is %q; want a name that rules[%d] does not have", r.Name, first))
		} else {
			names[r.Name] = i
		}
		switch r.Name {
		case "":
			errs = append(errs, field.Errorf(at+".name", "is missing; want a name for messages"))
		case defaultName:
			errs = append(errs, field.Errorf(at+".name", "is %q; want another, the default rule has it", r.Name))
		}
		errs = append(errs, c.validateModels(i), r.validate(at))
	}
	return errors.Join(errs...)
}

// validateModels reports patterns of rule i that cannot match anything, on their own or behind earlier rules.
func (c Config) validateModels(i int) error {
	var errs []error
	at := fmt.Sprintf("rules[%d].models", i)
	if len(c.Rules[i].Models) == 0 {
		errs = append(errs, field.Errorf(at, "is empty; want at least one model, or move the rule to default"))
	}
	for j, m := range c.Rules[i].Models {
		if m == "" || strings.Contains(strings.TrimSuffix(m, "*"), "*") {
			errs = append(errs, field.Errorf(fmt.Sprintf("%s[%d]", at, j), "is %q; want a model's name, * only as its last character", m))
			continue
		}
		for k, earlier := range c.Rules[:i] {
			if covers(earlier.Models, m) {
				errs = append(errs, field.Errorf(fmt.Sprintf("%s[%d]", at, j), "is %q; rules[%d] takes it already and the first match wins", m, k))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// covers reports whether every model that pattern m matches is matched by one of the patterns.
func covers(patterns []string, m string) bool {
	for _, p := range patterns {
		prefix, open := strings.CutSuffix(p, "*")
		if p == m || open && strings.HasPrefix(strings.TrimSuffix(m, "*"), prefix) {
			return true
		}
	}
	return false
}

func (c Choosing) validate(at string) error {
	var errs []error
	if n := c.Split.MinPromptTokens; n != nil && *n < 0 {
		errs = append(errs, field.Errorf(at+".split.min_prompt_tokens", "is %d; want 0 or more", *n))
	}
	if w := c.Split.OnNoPrefill; w != "" && w != aggregate && w != reject {
		errs = append(errs, field.Errorf(at+".split.on_no_prefill", "is %q; want %s or %s", w, aggregate, reject))
	}
	if c.Policy != "" && c.Policy != byRoles && c.Policy != byCost {
		errs = append(errs, field.Errorf(at+".policy", "is %q; want %s or %s", c.Policy, byRoles, byCost))
	}
	if t := c.Objective.TTFT; t != nil && *t <= 0 {
		errs = append(errs, field.Errorf(at+".objective.ttft", "is %v; want more than 0", *t))
	}
	if t := c.Objective.ITL; t != nil && *t <= 0 {
		errs = append(errs, field.Errorf(at+".objective.itl", "is %v; want more than 0", *t))
	}
	if n := c.Objective.Tolerance; n != nil && !(*n > 0 && *n <= 1) {
		errs = append(errs, field.Errorf(at+".objective.tolerance", "is %v; want more than 0, at most 1", *n))
	}
	if n := c.Objective.LateWeight; n != nil && !(*n >= 0 && *n <= 1) {
		errs = append(errs, field.Errorf(at+".objective.late_weight", "is %v; want 0 to 1", *n))
	}
	if c.Policy == byCost && (c.Prefill.chosen() || c.Decode.chosen()) {
		errs = append(errs, field.Errorf(at+".policy", "is cost beside a policy, scorers or a picker of prefill or decode; want filters there alone"))
	}
	if a := c.AfterFailure; a != "" && a != Cut && a != Continue && a != ContinueAlways {
		errs = append(errs, field.Errorf(at+".after_failure", "is %q; want %s, %s or %s", a, Cut, Continue, ContinueAlways))
	}
	errs = append(errs, c.Prefill.validate(at+".prefill"), c.Decode.validate(at+".decode"))
	return errors.Join(errs...)
}

func (r Role) validate(at string) error {
	var errs []error
	if _, ok := preset(r.Policy); !ok && r.Policy != "" {
		errs = append(errs, field.Errorf(at+".policy", "is %q; want %s", r.Policy, field.OneOf(presetNames())))
	}
	if r.Policy != "" && len(r.Scorers) > 0 {
		errs = append(errs, field.Errorf(at+".scorers", "is set beside policy; want one of them"))
	}
	if r.Policy != "" && r.Picker != "" {
		errs = append(errs, field.Errorf(at+".picker", "is set beside policy; want one of them"))
	}
	if _, ok := find(pickers, r.Picker); !ok && r.Picker != "" {
		errs = append(errs, field.Errorf(at+".picker", "is %q; want %s", r.Picker, field.OneOf(namesOf(pickers))))
	}
	if needs := r.Picker == "best" || r.Picker == "power_of_two" || r.Picker == "weighted_random"; needs && len(r.Scorers) == 0 && r.Policy == "" {
		errs = append(errs, field.Errorf(at+".picker", "is %q without scorers; want scorers, or round_robin or random", r.Picker))
	}
	for i, p := range r.Filters {
		errs = append(errs, validatePart(fmt.Sprintf("%s.filters[%d]", at, i), p, filters, "strict"))
		if p.Name == "ahead" && p.Requests < 1 {
			errs = append(errs, field.Errorf(fmt.Sprintf("%s.filters[%d].requests", at, i), "is %d; want 1 or more", p.Requests))
		}
	}
	for i, p := range r.Scorers {
		errs = append(errs, validatePart(fmt.Sprintf("%s.scorers[%d]", at, i), p, scorers, "weight"))
		if w := p.Weight; w != nil && (!(*w > 0) || math.IsInf(*w, 0)) {
			errs = append(errs, field.Errorf(fmt.Sprintf("%s.scorers[%d].weight", at, i), "is %v; want more than 0", *w))
		}
	}
	return errors.Join(errs...)
}

// validatePart reports a name that is none of those known, and keys that mean nothing to it; also is one that all of them have.
func validatePart[T any](at string, p Part, known []entry[T], also string) error {
	e, ok := find(known, p.Name)
	if !ok {
		return field.Errorf(at+".name", "is %q; want %s", p.Name, field.OneOf(namesOf(known)))
	}
	var errs []error
	for _, k := range []struct {
		key string
		set bool
	}{{"weight", p.Weight != nil}, {"strict", p.Strict}, {"zone", p.Zone != ""}, {"requests", p.Requests != 0}} {
		if k.set && k.key != also && !slices.Contains(e.uses, k.key) {
			errs = append(errs, field.Errorf(at+"."+k.key, "is set; %s has no such key", p.Name))
		}
	}
	return errors.Join(errs...)
}
