package policies

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pdrouter/internal/field"
)

// composed has the same role for both, written in YAML.
func composed(t *testing.T, role string) *Policy {
	t.Helper()
	p, err := Parse("test.yaml", []byte("default: {prefill: "+role+", decode: "+role+"}"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestComposed weighs scorers against each other, with filters before them.
func TestComposed(t *testing.T) {
	in := func(zone string, _ float64, inFlight, cached int) Engine {
		return Engine{Usable: true, InFlight: inFlight, Cached: cached, Place: &Placement{Zone: zone}}
	}
	for name, tt := range map[string]struct {
		role    string
		engines []Engine
		want    int
		why     string
	}{
		"weights decide":                     {"{scorers: [{name: load}, {name: prefix, weight: 2}]}", []Engine{in("", 0, 0, 0), in("", 0, 9, 1000)}, 1, "decode scored 2.00 (another 1.00)"},
		"the other way round":                {"{scorers: [{name: load, weight: 2}, prefix]}", []Engine{in("", 0, 0, 0), in("", 0, 9, 1000)}, 0, "decode scored 2.00 (another 1.00)"},
		"a zone is preferred":                {"{filters: [{name: zone, zone: a}], scorers: [load]}", []Engine{in("b", 0, 0, 0), in("a", 0, 9, 0)}, 1, "decode scored 1.00"},
		"and left if it has no engine":       {"{filters: [{name: zone, zone: a}], scorers: [load]}", []Engine{in("b", 0, 0, 0), in("c", 0, 9, 0)}, 0, "decode scored 1.00 (another 0.00)"},
		"unless it is strict":                {"{filters: [{name: zone, zone: a, strict: true}], scorers: [load]}", []Engine{in("b", 0, 0, 0), in("c", 0, 9, 0)}, -1, "nobody (rule default)"},
		"a filter beside a preset":           {"{policy: least_load, filters: [{name: zone, zone: a}]}", []Engine{in("b", 0, 0, 0), in("a", 0, 9, 0)}, 1, "decode least_load 9"},
		"a zone counts for something":        {"{scorers: [{name: zone, zone: a, weight: 0.5}, load]}", []Engine{in("b", 0, 0, 0), in("a", 0, 1, 0), in("a", 0, 9, 0)}, 1, "decode scored 1.39 (another 1.00)"},
		"far ahead":                          {"{filters: [{name: ahead, requests: 5}], scorers: [prefix]}", []Engine{in("", 0, 0, 0), in("", 0, 5, 1000)}, 0, "decode scored 0.00"},
		"not far ahead":                      {"{filters: [{name: ahead, requests: 6}], scorers: [prefix]}", []Engine{in("", 0, 0, 0), in("", 0, 5, 1000)}, 1, "decode scored 1.00 (another 0.00)"},
		"round robin looks at no scores":     {"{scorers: [load], picker: round_robin}", []Engine{in("", 0, 9, 0), in("", 0, 0, 0)}, 0, "decode scored 0.00"},
		"least backlog":                      {"{scorers: [backlog]}", []Engine{{Usable: true, Backlog: 9}, {Usable: true, Backlog: 8}}, 1, "decode scored 1.00 (another 0.00)"},
		"nothing is known of the engine":     {"{filters: [prompt_tokens], scorers: [zone]}", []Engine{{Usable: true}}, 0, "decode scored 1.00"},
		"all get nothing of weighted random": {"{scorers: [prefix], picker: weighted_random}", []Engine{{Usable: true}}, 0, "decode scored 0.00"},
		"one gets all of weighted random":    {"{scorers: [prefix], picker: weighted_random}", []Engine{{Usable: true}, {Usable: true, Cached: 1}, {Usable: true}}, 1, "decode scored 0.00"},
	} {
		t.Run(name, func(t *testing.T) {
			c := composed(t, tt.role).Choose(Request{PromptTokens: 1000, Unsplittable: Aggregated}, Fleet{Decode: tt.engines}, Draw{})
			if c.Decode != tt.want || c.Why() != tt.why {
				t.Errorf("engine %d, %q; want %d, %q", c.Decode, c.Why(), tt.want, tt.why)
			}
		})
	}
}

// TestHandOffFilter: a hand-off that goes wrong is avoided while there is another, and nothing of it matters where decode serves alone.
func TestHandOffFilter(t *testing.T) {
	p := composed(t, "{policy: least_load, filters: [hand_off]}")
	f := Fleet{Prefill: []Engine{{Usable: true}}, Decode: []Engine{{Usable: true}, {Usable: true, InFlight: 9}}}
	for name, row := range map[string]struct {
		troubled func(p, d int) bool
		request  Request
		want     int
	}{
		"nothing is wrong": {nil, Request{PromptTokens: 1000}, 0},
		"one is":           {func(p, d int) bool { return p == 0 && d == 0 }, Request{PromptTokens: 1000}, 1},
		"all are":          {func(int, int) bool { return true }, Request{PromptTokens: 1000}, 0},
		"decode alone":     {func(_, d int) bool { return d == 0 }, Request{PromptTokens: 1000, Unsplittable: Aggregated}, 0},
	} {
		f.Troubled = row.troubled
		if c := p.Choose(row.request, f, Draw{}); c.Decode != row.want || c.Split != (row.request.Unsplittable == "") {
			t.Errorf("%s: decode engine %d, split %t; want %d", name, c.Decode, c.Split, row.want)
		}
	}
}

// TestPromptTokens: engines that are meant for some lengths of prompts get these.
func TestPromptTokens(t *testing.T) {
	p := composed(t, "{policy: least_load, filters: [{name: prompt_tokens, strict: true}]}")
	f := Fleet{Decode: []Engine{
		{Usable: true, InFlight: 9, Place: &Placement{PromptTokens: [2]int{0, 100}}},
		{Usable: true, Place: &Placement{PromptTokens: [2]int{101, 0}}},
	}}
	if c := p.Choose(Request{AnyLength: true, Unsplittable: Aggregated}, f, Draw{}); c.Decode != 1 {
		t.Errorf("a prompt of any length: engine %d; want 1, which has the least to do", c.Decode)
	}
	if c := p.Choose(Request{PromptTokens: 50, MustSplit: true}, Fleet{Prefill: f.Decode, Decode: f.Decode}, Draw{}); !c.Split || c.Prefill != 0 {
		t.Errorf("a short prompt that must be split: %+v", c)
	}
	for tokens, want := range map[int]int{0: 0, 100: 0, 101: 1, 1 << 20: 1} {
		if c := p.Choose(Request{PromptTokens: tokens, Unsplittable: Aggregated}, f, Draw{}); c.Decode != want {
			t.Errorf("%d tokens: engine %d; want %d", tokens, c.Decode, want)
		}
	}
}

// TestLoRA: an engine that has the request's adapter is preferred to one that may load it, and that to one whose slots others have. Load decides
// among equals, also where no engine says anything.
func TestLoRA(t *testing.T) {
	p := composed(t, "{filters: [{name: ahead, requests: 5}], scorers: [{name: lora, weight: 3}, load]}")
	if !p.Adapters("m") || composed(t, "{scorers: [load]}").Adapters("m") || Default().Adapters("m") {
		t.Error("Adapters does not say whether the rule has the scorer lora")
	}
	for name, tt := range map[string]struct {
		states   []AdapterState
		inFlight []int
		want     int
		why      string
	}{
		"no engine says anything":       {[]AdapterState{AdapterLoadable, AdapterLoadable}, []int{1, 0}, 1, "decode scored 2.50 (another 1.50)"},
		"all have it":                   {[]AdapterState{AdapterLoaded, AdapterLoaded}, []int{1, 0}, 1, "decode scored 4.00 (another 3.00)"},
		"one has it":                    {[]AdapterState{AdapterLoadable, AdapterLoaded, AdapterLoadable}, []int{0, 4, 4}, 1, "decode scored 3.00 (another 2.50)"},
		"one has it, and is far ahead":  {[]AdapterState{AdapterLoadable, AdapterLoaded, AdapterLoadable}, []int{0, 5, 4}, 0, "decode scored 2.50 (another 1.50)"},
		"a slot is free, or not known":  {[]AdapterState{AdapterBlocked, AdapterLoadable}, []int{4, 0}, 1, "decode scored 2.50 (another 0.00)"},
		"the slots of all are in use":   {[]AdapterState{AdapterBlocked, AdapterBlocked}, []int{0, 3}, 0, "decode scored 1.00 (another 0.00)"},
		"loaded goes before a free one": {[]AdapterState{AdapterLoaded, AdapterBlocked, AdapterLoadable}, []int{2, 2, 2}, 0, "decode scored 4.00 (another 2.50)"},
	} {
		f := Fleet{Decode: engines(tt.inFlight...)}
		for i, s := range tt.states {
			f.Decode[i].Adapter = s
		}
		if c := p.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: 1}); c.Decode != tt.want || c.Why() != tt.why {
			t.Errorf("%s: engine %d, %q; want %d, %q", name, c.Decode, c.Why(), tt.want, tt.why)
		}
	}
}

// TestZoneOfPartner: a decode engine is taken of the zone of the prefill engine.
func TestZoneOfPartner(t *testing.T) {
	p := composed(t, "{policy: round_robin, filters: [zone]}")
	var f Fleet
	for _, zone := range []string{"a", "b", ""} {
		e := Engine{Usable: true, Place: &Placement{Zone: zone}}
		f.Prefill, f.Decode = append(f.Prefill, e), append(f.Decode, e)
	}
	for turn := range uint64(30) {
		c := p.Choose(Request{}, f, Draw{Turn: turn})
		if zone := f.Prefill[c.Prefill].zone(); zone != "" && f.Decode[c.Decode].zone() != zone {
			t.Errorf("turn %d: zones %q and %q", turn, zone, f.Decode[c.Decode].zone())
		}
	}
}

// TestSession: the requests of a session have one engine, sessions spread evenly, an engine that goes moves only its own, and one that is far
// ahead of others is passed over.
func TestSession(t *testing.T) {
	p := plainPolicy(t, "session")
	f := Fleet{Decode: engines(1, 0, 3, 2)}
	choose := func(f Fleet, session, turn uint64) int {
		return p.Choose(Request{Unsplittable: Aggregated, Session: session}, f, Draw{Turn: turn, Random: mix(turn)}).Decode
	}
	counts, without3 := make([]int, 4), Fleet{Decode: without(engines(1, 0, 3, 2), 3)}
	for s := uint64(1); s <= 4000; s++ {
		home := choose(f, mix(s), 0)
		counts[home]++
		for turn := range uint64(5) {
			if got := choose(f, mix(s), turn); got != home {
				t.Fatalf("session %d: engine %d, then %d", s, home, got)
			}
		}
		if got := choose(without3, mix(s), 0); home != 3 && got != home {
			t.Fatalf("session %d moved from %d to %d as engine 3 left", s, home, got)
		}
	}
	for i, n := range counts {
		if n < 900 || n > 1100 {
			t.Errorf("engine %d is the home of %d of 4000 sessions; want about 1000", i, n)
		}
	}
	home := choose(f, mix(1), 0)
	f.Decode[home].InFlight = mostAhead
	if got := choose(f, mix(1), 0); got == home {
		t.Errorf("the home has %d more requests in flight than another, and still gets more", mostAhead)
	}
	if got := choose(Fleet{Decode: engines(1, 0, 3, 2)}, 0, 0); got != 1 {
		t.Errorf("a request without a session: engine %d; want 1, which has the least to do", got)
	}
}

// TestWeight: an engine with a weight gets that part of what it would get, by every policy.
func TestWeight(t *testing.T) {
	const draws = 40000
	for _, by := range presetNames() {
		p, rng := plainPolicy(t, by), rand.New(rand.NewPCG(3, nameHash(by)))
		f := Fleet{Decode: engines(1, 1, 1, 1)}
		f.Decode[2].Place = &Placement{Weight: 0.1}
		f.Decode[2].InFlight = 0
		got := 0
		for turn := range uint64(draws) {
			if p.Choose(Request{Unsplittable: Aggregated, Session: rng.Uint64()}, f, Draw{Turn: turn, Random: rng.Uint64()}).Decode == 2 {
				got++
			}
		}
		if want := draws / 31; got < want*8/10 || got > want*12/10 {
			t.Errorf("%s: the canary got %d of %d requests; want about %d", by, got, draws, want)
		}
	}
}

// TestWeightedRandom: odds in proportion to the score.
func TestWeightedRandom(t *testing.T) {
	p, rng := composed(t, "{scorers: [prefix], picker: weighted_random}"), rand.New(rand.NewPCG(8, 8))
	f := Fleet{Decode: engines(0, 0, 0)}
	f.Decode[0].Cached, f.Decode[1].Cached = 100, 300
	counts := make([]int, 3)
	for range 4000 {
		counts[p.Choose(Request{PromptTokens: 400, Unsplittable: Aggregated}, f, Draw{Random: rng.Uint64()}).Decode]++
	}
	if counts[0] < 900 || counts[0] > 1100 || counts[2] != 0 {
		t.Errorf("chosen %d times; want about 1000, 3000, 0", counts)
	}
}

// TestComposedAllocatesNothing: whatever is named in the registry.
func TestComposedAllocatesNothing(t *testing.T) {
	skipRaced(t)
	var all Role
	for _, e := range filters {
		all.Filters = append(all.Filters, Part{Name: e.name, Requests: 5})
	}
	for _, e := range scorers {
		all.Scorers = append(all.Scorers, Part{Name: e.name})
	}
	f := bigFleet(64)
	f.Decode[3].Place = &Placement{Weight: 0.5}
	for _, e := range pickers {
		all.Picker = e.name
		for i := range all.Filters {
			if all.Filters[i].Name != "ahead" {
				all.Filters[i].Requests = 0
			}
		}
		p, err := New(Config{Default: Choosing{Prefill: all, Decode: all}})
		if err != nil {
			t.Fatal(err)
		}
		draw := Draw{Random: 0x9e3779b97f4a7c15}
		if n := testing.AllocsPerRun(200, func() {
			draw.Turn++
			draw.Random = mix(draw.Random)
			p.Choose(Request{PromptTokens: 10, Session: 7}, f, draw)
		}); n != 0 {
			t.Errorf("%s: %v allocations", e.name, n)
		}
	}
}

// TestComposedMistakes names each mistake and where it is.
func TestComposedMistakes(t *testing.T) {
	for role, want := range map[string]string{
		"{scorers: [lode]}":                               `default.decode.scorers[0].name is "lode"; want ` + field.OneOf(namesOf(scorers)),
		"{filters: [zones], scorers: [load]}":             `default.decode.filters[0].name is "zones"; want ` + field.OneOf(namesOf(filters)),
		"{scorers: [load], picker: worst}":                `default.decode.picker is "worst"; want ` + field.OneOf(namesOf(pickers)),
		"{policy: prefix, scorers: [load]}":               `default.decode.scorers is set beside policy; want one of them`,
		"{policy: prefix, picker: best}":                  `default.decode.picker is set beside policy; want one of them`,
		"{filters: [ahead]}":                              `default.decode.filters[0].requests is 0; want 1 or more`,
		"{picker: power_of_two}":                          `default.decode.picker is "power_of_two" without scorers; want scorers, or round_robin or random`,
		"{scorers: [{name: load, weight: 0}]}":            `default.decode.scorers[0] "load": weight is 0; want more than 0`,
		"{scorers: [{name: load, weight: -1}]}":           `default.decode.scorers[0] "load": weight is -1; want more than 0`,
		"{scorers: [{name: load, zone: a}]}":              `default.decode.scorers[0] "load": zone is set; load has no such key`,
		"{scorers: [{name: load, strict: true}]}":         `default.decode.scorers[0] "load": strict is set; load has no such key`,
		"{scorers: [{name: lora, zone: a}]}":              `default.decode.scorers[0] "lora": zone is set; lora has no such key`,
		"{filters: [{name: lora}]}":                       `default.decode.filters[0].name is "lora"; want ` + field.OneOf(namesOf(filters)),
		"{filters: [{name: zone, weight: 1}]}":            `default.decode.filters[0] "zone": weight is set; zone has no such key`,
		"{filters: [{name: prompt_tokens, requests: 4}]}": `default.decode.filters[0] "prompt_tokens": requests is set; prompt_tokens has no such key`,
	} {
		_, err := Parse("p.yaml", []byte("default: {decode: "+role+"}"))
		if got := fmt.Sprint(err); got != "p.yaml:1: "+want {
			t.Errorf("%s:\n got %s\nwant p.yaml:1: %s", role, got, want)
		}
	}
}

// TestParts: engines get requests in proportion to their parts, also where none has a full one.
func TestParts(t *testing.T) {
	const draws = 40000
	p, rng := plainPolicy(t, "least_load"), rand.New(rand.NewPCG(5, 5))
	for name, tt := range map[string]struct{ weights, shares, want []float64 }{
		"a canary beside one":                {[]float64{1, 0.1}, []float64{1, 1}, []float64{1, 0.1}},
		"several halves":                     {[]float64{1, 0.5, 0.5, 0.5}, []float64{1, 1, 1, 1}, []float64{1, 0.5, 0.5, 0.5}},
		"a canary beside one that is new":    {[]float64{1, 0.1}, []float64{0.5, 1}, []float64{0.5, 0.1}},
		"all are new: by weight, not by age": {[]float64{1, 0.5}, []float64{0.2, 0.9}, []float64{1, 0.5}},
	} {
		f, sum := Fleet{Decode: engines(make([]int, len(tt.weights))...)}, 0.0
		for i, w := range tt.weights {
			f.Decode[i].Place, f.Decode[i].Share = &Placement{Weight: w}, tt.shares[i]
			sum += tt.want[i]
		}
		counts := make([]int, len(tt.weights))
		for turn := range uint64(draws) {
			counts[p.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: turn, Random: rng.Uint64()}).Decode]++
		}
		for i, n := range counts {
			if want := draws * tt.want[i] / sum; float64(n) < want*0.93 || float64(n) > want*1.07 {
				t.Errorf("%s: chosen %d times; want about %.0f for engine %d", name, counts, want, i)
			}
		}
	}
}

// TestSessionsAndParts: an engine with a part gets that part of the sessions, and each session stays where it is.
func TestSessionsAndParts(t *testing.T) {
	p := plainPolicy(t, "session")
	f := Fleet{Decode: engines(0, 0, 0)}
	f.Decode[2].Place = &Placement{Weight: 0.5}
	counts := make([]int, 3)
	for s := range uint64(5000) {
		first := -1
		for turn := range uint64(4) {
			c := p.Choose(Request{Unsplittable: Aggregated, Session: mix(s + 1)}, f, Draw{Turn: turn, Random: mix(turn ^ s)})
			if first >= 0 && c.Decode != first {
				t.Fatalf("session %d: engine %d, then %d", s, first, c.Decode)
			}
			first = c.Decode
		}
		counts[first]++
	}
	if counts[2] < 900 || counts[2] > 1100 {
		t.Errorf("%d of 5000 sessions; want about 1000 for the engine with half a part", counts)
	}
}

// TestPartnerOfFilters: a prefill engine whose decode engines the filters leave out is passed over for one that has a partner. A pinned request is
// not filtered.
func TestPartnerOfFilters(t *testing.T) {
	pol, err := Parse("p.yaml", []byte("default: {prefill: round_robin, decode: {filters: [{name: zone, strict: true}], scorers: [load]}}"))
	if err != nil {
		t.Fatal(err)
	}
	in := func(name, zone string, usable bool) Engine {
		return Engine{Name: name, Usable: usable, Place: &Placement{Zone: zone, PromptTokens: [2]int{100, 0}}}
	}
	f := Fleet{Prefill: []Engine{in("pa", "a", true), in("pb", "b", true)}, Decode: []Engine{in("da", "a", false), in("db", "b", true)}}
	for turn := range uint64(20) {
		c, stages := pol.Explain(Request{}, f, Draw{Turn: turn})
		if !c.Split || c.Prefill != 1 || c.Decode != 1 || len(stages) != 2 || stages[0].Candidates[0].Taken {
			t.Fatalf("turn %d: %+v\n%+v", turn, c, stages)
		}
	}
	strict := composed(t, "{filters: [{name: prompt_tokens, strict: true}], scorers: [load]}")
	q := Request{PromptTokens: 5, Unsplittable: "previous_response_id"}
	if c := strict.Choose(q, f, Draw{}); c.Decode >= 0 {
		t.Errorf("engine %d takes a prompt that it is not meant for", c.Decode)
	}
	if q.Pinned = true; strict.Choose(q, f, Draw{}).Decode != 1 {
		t.Error("a pinned request is not served by the only engine that can")
	}
}
