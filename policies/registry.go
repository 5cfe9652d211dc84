package policies

import (
	"slices"
)

// entry is something that a configuration can name.
type entry[T any] struct {
	name string
	make func(p Part) T
	// prefix says that it looks at Engine.Cached or Engine.Backlog.
	prefix bool
	// session says that it looks at Request.Session.
	session bool
	// adapter says that it looks at Engine.Adapter.
	adapter bool
	// uses are the keys of Part, beside name, that mean something to it.
	uses []string
}

var filters = []entry[Filter]{
	{name: "ahead", make: func(p Part) Filter { return ahead{p.Requests} }, uses: []string{"requests"}},
	{name: "hand_off", make: func(Part) Filter { return handOff{} }},
	{name: "prompt_tokens", make: func(Part) Filter { return promptTokens{} }},
	{name: "zone", make: func(p Part) Filter { return zone{p.Zone} }, uses: []string{"zone"}},
}

var scorers = []entry[Scorer]{
	{name: "load", make: func(Part) Scorer { return load{} }},
	{name: "backlog", make: func(Part) Scorer { return backlog{} }, prefix: true},
	{name: "prefix", make: func(Part) Scorer { return cached{} }, prefix: true},
	{name: "least_work", make: func(Part) Scorer { return leastWork{} }, prefix: true},
	{name: "session", make: func(Part) Scorer { return session{} }, session: true},
	{name: "lora", make: func(Part) Scorer { return lora{} }, adapter: true},
	{name: "zone", make: func(p Part) Scorer { return zone{p.Zone} }, uses: []string{"zone"}},
}

var pickers = []entry[Picker]{
	{name: "best", make: func(Part) Picker { return best{} }},
	{name: "power_of_two", make: func(Part) Picker { return powerOfTwo{} }},
	{name: "weighted_random", make: func(Part) Picker { return weightedRandom{} }},
	{name: "round_robin", make: func(Part) Picker { return roundRobin{} }},
	{name: "random", make: func(Part) Picker { return random{} }},
}

// sessionWeight makes a session's home better than the least load.
var sessionWeight = 2.0

// presets are policies with a name of their own.
var presets = []struct {
	name string
	of   Role
}{
	{"round_robin", Role{Picker: "round_robin"}},
	{"random", Role{Picker: "random"}},
	{"least_load", Role{Scorers: []Part{{Name: "load"}}}},
	{"power_of_two", Role{Scorers: []Part{{Name: "load"}}, Picker: "power_of_two"}},
	{"prefix", Role{Filters: []Part{{Name: "ahead", Requests: mostAhead}}, Scorers: []Part{{Name: "least_work"}}}},
	{"session", Role{Filters: []Part{{Name: "ahead", Requests: mostAhead}}, Scorers: []Part{{Name: "session", Weight: &sessionWeight}, {Name: "load"}}}},
}

// scored is the name in messages of a role that is no preset.
const scored = "scored"

// find returns the entry with a name.
func find[T any](from []entry[T], name string) (entry[T], bool) {
	i := slices.IndexFunc(from, func(e entry[T]) bool { return e.name == name })
	if i < 0 {
		return entry[T]{}, false
	}
	return from[i], true
}

// preset returns the preset with a name.
func preset(name string) (Role, bool) {
	for _, p := range presets {
		if p.name == name {
			return p.of, true
		}
	}
	return Role{}, false
}

func namesOf[T any](from []entry[T]) []string {
	var names []string
	for _, e := range from {
		names = append(names, e.name)
	}
	return names
}

func presetNames() []string {
	var names []string
	for _, p := range presets {
		names = append(names, p.name)
	}
	return names
}

// newRole makes a role of a validated Role.
func newRole(r Role) *role {
	out := &role{name: scored}
	if r.Policy != "" {
		of, _ := preset(r.Policy)
		out.name, r.Scorers, r.Picker, r.Filters = r.Policy, of.Scorers, of.Picker, append(slices.Clone(r.Filters), of.Filters...)
	}
	for _, p := range r.Filters {
		e, _ := find(filters, p.Name)
		out.filters, out.prefix = append(out.filters, filter{e.make(p), "left out by the filter " + p.Name, p.Strict}), out.prefix || e.prefix
	}
	for _, p := range r.Scorers {
		e, _ := find(scorers, p.Name)
		weight := 1.0
		if p.Weight != nil {
			weight = *p.Weight
		}
		out.scorers, out.prefix = append(out.scorers, scorer{e.make(p), p.Name, weight}), out.prefix || e.prefix
		out.session, out.adapter = out.session || e.session, out.adapter || e.adapter
	}
	if r.Picker == "" {
		r.Picker = "best"
	}
	e, _ := find(pickers, r.Picker)
	out.picker, out.pickerName = e.make(Part{}), r.Picker
	return out
}
