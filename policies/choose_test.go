package policies

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/racetest"
)

// plainPolicy has one rule for all, with the same picker for both roles.
func plainPolicy(t testing.TB, by string) *Policy {
	t.Helper()
	p, err := New(Config{Default: Choosing{Prefill: Role{Policy: by}, Decode: Role{Policy: by}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func engines(loads ...int) []Engine {
	var es []Engine
	for i, n := range loads {
		es = append(es, Engine{Name: fmt.Sprint("engine-", i), Usable: true, InFlight: n})
	}
	return es
}

func without(es []Engine, down ...int) []Engine {
	for _, i := range down {
		es[i].Usable = false
	}
	return es
}

func TestChoose(t *testing.T) {
	text := `
default: {split: {min_prompt_tokens: 100}, prefill: {policy: least_load}, decode: {policy: round_robin}}
rules:
  - {name: strict, models: [big, big-*], split: {min_prompt_tokens: 0, on_no_prefill: reject}}
`
	p, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		Split           bool
		Prefill, Decode int
		Reason          Reason
		Why             string
	}
	never := func(int, int) bool { return false }
	for _, tt := range []struct {
		name  string
		q     Request
		fleet Fleet
		want  answer
	}{
		{
			name:  "split",
			q:     Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(2, 0), Decode: engines(0)},
			want:  answer{true, 1, 0, Split, "prefill least_load 0<2 · decode round_robin"},
		},
		{
			name:  "equals",
			q:     Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(1, 1), Decode: engines(0)},
			want:  answer{true, 0, 0, Split, "prefill least_load 1=1 · decode round_robin"},
		},
		{
			name:  "short prompt",
			q:     Request{Model: "tiny", PromptTokens: 99},
			fleet: Fleet{Prefill: engines(0), Decode: engines(0)},
			want:  answer{false, -1, 0, ShortPrompt, "prompt 99<100 · decode round_robin"},
		},
		{
			name:  "another rule has another minimum",
			q:     Request{Model: "big-2", PromptTokens: 1},
			fleet: Fleet{Prefill: engines(0), Decode: engines(0)},
			want:  answer{true, 0, 0, Split, "prefill least_load 0 · decode round_robin (rule strict)"},
		},
		{
			name:  "unsplittable",
			q:     Request{Model: "tiny", PromptTokens: 1000, Unsplittable: "n>1"},
			fleet: Fleet{Prefill: engines(0), Decode: engines(0)},
			want:  answer{false, -1, 0, "n>1", "decode round_robin"},
		},
		{
			name:  "unsplittable is served even where no prefill means refusal",
			q:     Request{Model: "big", PromptTokens: 1000, Unsplittable: Aggregated},
			fleet: Fleet{Decode: engines(0)},
			want:  answer{false, -1, 0, Aggregated, "decode round_robin (rule strict)"},
		},
		{
			name:  "no prefill",
			q:     Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: without(engines(0, 0), 0, 1), Decode: engines(0)},
			want:  answer{false, -1, 0, NoPrefill, "decode round_robin"},
		},
		{
			name:  "no prefill, refused",
			q:     Request{Model: "big", PromptTokens: 100},
			fleet: Fleet{Decode: engines(0)},
			want:  answer{false, -1, -1, NoPrefill, "nobody (rule strict)"},
		},
		{
			name:  "no pair",
			q:     Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(0), Decode: engines(0), Pairable: never},
			want:  answer{false, -1, 0, NoPair, "decode round_robin"},
		},
		{
			name:  "no pair, refused",
			q:     Request{Model: "big", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(0), Decode: engines(0), Pairable: never},
			want:  answer{false, -1, -1, NoPair, "nobody (rule strict)"},
		},
		{
			name:  "no decode",
			q:     Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(0), Decode: without(engines(0), 0)},
			want:  answer{false, -1, -1, NoDecode, "nobody (rule default)"},
		},
		{
			name:  "short prompt, no decode",
			q:     Request{Model: "tiny", PromptTokens: 1},
			fleet: Fleet{Prefill: engines(0)},
			want:  answer{false, -1, -1, NoDecode, "nobody (rule default)"},
		},
		{
			name: "the only pair, against the loads",
			q:    Request{Model: "tiny", PromptTokens: 100},
			fleet: Fleet{Prefill: engines(0, 9), Decode: engines(9, 0), Pairable: func(p, d int) bool {
				return p == 1 && d == 0
			}},
			want: answer{true, 1, 0, Split, "prefill least_load 9 · decode round_robin"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := p.Choose(tt.q, tt.fleet, Draw{})
			got := answer{c.Split, c.Prefill, c.Decode, c.Reason, c.Why()}
			if diff := cmp.Diff(got, tt.want); diff != "" {
				t.Error("choice (-got +want):\n" + diff)
			}
		})
	}
}

// TestChooseProperties checks what every choice must keep, over random fleets and every picker.
func TestChooseProperties(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		by := presets[rng.IntN(len(presets))].name
		pol := plainPolicy(t, by)
		f := Fleet{Prefill: randomEngines(rng), Decode: randomEngines(rng)}
		pairs := make([]bool, 64)
		for i := range pairs {
			pairs[i] = rng.IntN(3) > 0
		}
		if rng.IntN(4) > 0 {
			f.Pairable = func(p, d int) bool { return pairs[p*8+d] }
		}
		c := pol.Choose(Request{PromptTokens: 1}, f, Draw{Turn: rng.Uint64(), Random: rng.Uint64()})
		if err := holds(f, c, by); err != nil {
			t.Fatalf("seed %d, %s: %v\nfleet %+v\nchoice %+v", seed, by, err, f, c)
		}
	}
}

func randomEngines(rng *rand.Rand) []Engine {
	es := make([]Engine, rng.IntN(8))
	for i := range es {
		es[i] = Engine{Usable: rng.IntN(3) > 0, InFlight: rng.IntN(4)}
	}
	return es
}

// holds checks a choice against the fleet without any of the code that made it.
func holds(f Fleet, c Choice, by string) error {
	pairable := func(p, d int) bool {
		return f.Prefill[p].Usable && f.Decode[d].Usable && (f.Pairable == nil || f.Pairable(p, d))
	}
	pairs, decodes := 0, 0
	leastP, leastD := 1<<30, 1<<30 // among the engines that the rules leave
	for d, e := range f.Decode {
		if e.Usable {
			decodes++
		}
		if e.Usable && (!c.Split || pairable(c.Prefill, d)) {
			leastD = min(leastD, e.InFlight)
		}
	}
	for p, e := range f.Prefill {
		for d := range f.Decode {
			if pairable(p, d) {
				pairs++
				leastP = min(leastP, e.InFlight)
			}
		}
	}
	switch {
	case c.Split != (pairs > 0):
		return fmt.Errorf("split is %v with %d pairs", c.Split, pairs)
	case c.Split != (c.Reason == Split):
		return fmt.Errorf("reason %s, split %v", c.Reason, c.Split)
	case (c.Decode >= 0) != (decodes > 0):
		return fmt.Errorf("decode %d with %d usable", c.Decode, decodes)
	case c.Decode >= 0 && !f.Decode[c.Decode].Usable:
		return fmt.Errorf("decode engine %d is not usable", c.Decode)
	case c.Split && !pairable(c.Prefill, c.Decode):
		return fmt.Errorf("pair %d, %d is not pairable", c.Prefill, c.Decode)
	case !c.Split && c.Prefill != -1:
		return fmt.Errorf("prefill engine %d without a split", c.Prefill)
	}
	if by == "least_load" && c.Split && f.Prefill[c.Prefill].InFlight != leastP {
		return fmt.Errorf("prefill engine has %d in flight, another %d", f.Prefill[c.Prefill].InFlight, leastP)
	}
	if (by == "least_load" || by == "prefix" && c.Split) && c.Decode >= 0 && f.Decode[c.Decode].InFlight != leastD {
		return fmt.Errorf("decode engine has %d in flight, another %d", f.Decode[c.Decode].InFlight, leastD)
	}
	return nil
}

// TestRoundRobinIsFair: at no point of a run has one usable engine been chosen twice more than another, and in
// the end every pair has been formed equally often.
func TestRoundRobinIsFair(t *testing.T) {
	pol := plainPolicy(t, "round_robin")
	for np := 1; np <= 6; np++ {
		for nd := 1; nd <= 6; nd++ {
			f := Fleet{Prefill: engines(make([]int, np+1)...), Decode: engines(make([]int, nd+1)...)}
			f.Prefill[0].Usable, f.Decode[nd].Usable = false, false
			pairs := map[[2]int]int{}
			p, d := make([]int, np+1), make([]int, nd+1)
			rounds := np * nd * int(lcm(np, nd))
			for turn := range rounds {
				c := pol.Choose(Request{}, f, Draw{Turn: uint64(turn)})
				p[c.Prefill]++
				d[c.Decode]++
				pairs[[2]int{c.Prefill, c.Decode}]++
				if spread(p[1:]) > 1 || spread(d[:nd]) > 1 {
					t.Fatalf("%d × %d engines, turn %d: chosen %v and %v times", np, nd, turn, p, d)
				}
			}
			if len(pairs) != np*nd {
				t.Errorf("%d × %d engines: only %d pairs formed", np, nd, len(pairs))
			}
			for pair, n := range pairs {
				if n*np*nd != rounds {
					t.Errorf("%d × %d engines: pair %v formed %d times of %d", np, nd, pair, n, rounds)
				}
			}
		}
	}
}

func spread(counts []int) int {
	low, high := counts[0], counts[0]
	for _, n := range counts {
		low, high = min(low, n), max(high, n)
	}
	return high - low
}

// TestLeastLoadTakesTurns: idle engines share the work instead of the first getting all of it.
func TestLeastLoadTakesTurns(t *testing.T) {
	pol := plainPolicy(t, "least_load")
	counts := make([]int, 3)
	for turn := range uint64(30) {
		counts[pol.Choose(Request{Unsplittable: Aggregated}, Fleet{Decode: engines(1, 1, 1)}, Draw{Turn: turn}).Decode]++
	}
	if diff := cmp.Diff(counts, []int{10, 10, 10}); diff != "" {
		t.Error("times chosen (-got +want):\n" + diff)
	}
}

// TestPowerOfTwo: of engines with different loads, the most loaded is never chosen (it never wins against a second
// one), and every other one is, the less loaded more often.
func TestPowerOfTwo(t *testing.T) {
	pol := plainPolicy(t, "power_of_two")
	f := Fleet{Decode: engines(3, 0, 1, 2)}
	counts := make([]int, 4)
	rng := rand.New(rand.NewPCG(7, 7))
	const draws = 6000
	for range draws {
		c := pol.Choose(Request{Unsplittable: Aggregated}, f, Draw{Random: rng.Uint64()})
		counts[c.Decode]++
		if other := c.why.decode.other; c.why.decode.load > other {
			t.Fatalf("chose the engine with %d over the one with %d", c.why.decode.load, other)
		}
	}
	// Six equally likely pairs: load 0 wins three of them, 1 two, 2 one, 3 none.
	for i, share := range []int{0, 3, 2, 1} {
		if want := draws * share / 6; counts[i] < want-150 || counts[i] > want+150 {
			t.Errorf("engine with load %d chosen %d times; want about %d", f.Decode[i].InFlight, counts[i], want)
		}
	}
}

// TestRandomIsUniform: both roles, drawn from one value, are uniform and independent of each other.
func TestRandomIsUniform(t *testing.T) {
	pol := plainPolicy(t, "random")
	f := Fleet{Prefill: engines(0, 9), Decode: engines(9, 0)}
	counts := map[[2]int]int{}
	rng := rand.New(rand.NewPCG(3, 3))
	const draws = 8000
	for range draws {
		c := pol.Choose(Request{}, f, Draw{Random: rng.Uint64()})
		counts[[2]int{c.Prefill, c.Decode}]++
	}
	for pair, n := range counts {
		if n < draws/4-200 || n > draws/4+200 {
			t.Errorf("pair %v chosen %d times; want about %d", pair, n, draws/4)
		}
	}
	if len(counts) != 4 {
		t.Errorf("%d pairs formed; want 4", len(counts))
	}
}

func TestRule(t *testing.T) {
	p, err := New(Config{Rules: []Rule{
		{Name: "exact", Models: []string{"llama"}},
		{Name: "family", Models: []string{"qwen*", "llama-*"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"llama": "exact", "llama-3": "family", "qwen": "family", "qwen2": "family", "llam": "default", "": "default",
	} {
		if got := p.Rule(model); got != want {
			t.Errorf("model %q: rule %s; want %s", model, got, want)
		}
	}
}

// TestDefaultPolicy: no file at all and an empty file mean the same: cost.
func TestDefaultPolicy(t *testing.T) {
	empty, err := Parse("empty.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := Fleet{Prefill: engines(1, 0), Decode: engines(0, 1)}
	for name, p := range map[string]*Policy{"Default": Default(), "empty file": empty} {
		if c := p.Choose(Request{PromptTokens: 1}, f, Draw{}); !p.Costs("m") || c.Reason != Cheaper || c.Decode < 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestPolicyLeftOut: a rule that names no policy is roles if it or default says how engines of a role are chosen or what is split, else cost.
func TestPolicyLeftOut(t *testing.T) {
	for _, tt := range []struct {
		text            string
		byDefault, rule string // with a rule for the model m
	}{
		{"", byCost, byCost},
		{"rules: [{name: r, models: [m], after_failure: continue}]", byCost, byCost},
		{"default: {objective: {ttft: 1s}, decode: {filters: [zone]}}", byCost, byCost},
		{"default: {split: {min_prompt_tokens: 0}}", byRoles, byRoles},
		{"default: {split: {on_no_prefill: reject}}", byRoles, byRoles},
		{"default: {prefill: least_load}", byRoles, byRoles},
		{"default: {decode: {scorers: [load]}}", byRoles, byRoles},
		{"default: {decode: {picker: random}}", byRoles, byRoles},
		{"{rules: [{name: r, models: [m], objective: {ttft: 1s}}], default: {split: {min_prompt_tokens: 9}}}", byRoles, byRoles},
		{"rules: [{name: r, models: [m], split: {min_prompt_tokens: 9}}]", byCost, byRoles},
		{"rules: [{name: r, models: [m], decode: session}]", byCost, byRoles},
		{"{rules: [{name: r, models: [m], split: {min_prompt_tokens: 9}}], default: {policy: cost}}", byCost, byCost},
		{"{rules: [{name: r, models: [m], decode: session}], default: {policy: cost}}", byCost, byRoles},
		{"{rules: [{name: r, models: [m], policy: cost}], default: {prefill: prefix, split: {min_prompt_tokens: 9}}}", byRoles, byCost},
		{"default: {policy: roles}", byRoles, byRoles},
		{"default: {policy: cost, split: {min_prompt_tokens: 9, on_no_prefill: reject}}", byCost, byCost},
	} {
		p, err := Parse("p.yaml", []byte(tt.text))
		if err != nil {
			t.Fatal(tt.text, err)
		}
		for model, want := range map[string]string{"m": tt.rule, "other": tt.byDefault} {
			if got := p.Costs(model); got != (want == byCost) {
				t.Errorf("%s: model %s: cost %v; want %s", tt.text, model, got, want)
			}
		}
	}
}

// TestPairsComeAndGo has pairs be lost, or made, while engines are chosen: the choice is of engines, or nobody, and nothing else happens.
func TestPairsComeAndGo(t *testing.T) {
	starting := engines(1, 0, 2)
	starting[1].Share = 0.3
	for _, by := range presetNames() {
		for _, fleet := range [][]Engine{engines(1, 0, 2), starting, engines(0, 200)} {
			for change := range 60 {
				for _, first := range []bool{true, false} {
					asked := 0
					f := Fleet{Prefill: fleet, Decode: fleet, Pairable: func(p, d int) bool {
						asked++
						return asked <= change == first
					}}
					c := plainPolicy(t, by).Choose(Request{}, f, Draw{Turn: uint64(change), Random: uint64(change) * 0x9e3779b97f4a7c15})
					if c.Split != (c.Prefill >= 0) || c.Split && c.Prefill >= len(fleet) || c.Decode < 0 || c.Decode >= len(fleet) {
						t.Fatalf("%s, after %d answers: %+v", by, change, c)
					}
				}
			}
		}
	}
}

func TestWhyOfZeroChoice(t *testing.T) {
	if got := (Choice{Reason: NoPair}).Why(); got != string(NoPair) {
		t.Errorf("got %q", got)
	}
}

// bigFleet has n engines a side, of which every fourth prefill engine cannot pair with every third decode engine.
func bigFleet(n int) Fleet {
	rng := rand.New(rand.NewPCG(1, 1))
	loads := make([]int, n)
	for i := range loads {
		loads[i] = rng.IntN(50)
	}
	return Fleet{Prefill: engines(loads...), Decode: engines(loads...), Pairable: func(p, d int) bool {
		return p%4 != 0 || d%3 != 0
	}}
}

// skipRaced skips a test that counts allocations under the race detector: pools forget, by chance, some of what is given back to them.
func skipRaced(t *testing.T) {
	t.Helper()
	if racetest.Enabled() {
		t.Skip("under the race detector")
	}
}

func TestChooseAllocatesNothing(t *testing.T) {
	skipRaced(t)
	f := bigFleet(16)
	for _, by := range presetNames() {
		pol := plainPolicy(t, by)
		draw := Draw{Random: 0x9e3779b97f4a7c15}
		var c Choice
		allocs := testing.AllocsPerRun(200, func() {
			draw.Turn++
			c = pol.Choose(Request{Model: "tiny", PromptTokens: 10}, f, draw)
		})
		if allocs != 0 || !c.Split {
			t.Errorf("%s: %v allocations, choice %+v", by, allocs, c)
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{2, 16, 128} {
		f := bigFleet(n)
		for _, by := range presetNames() {
			pol := plainPolicy(b, by)
			b.Run(fmt.Sprintf("%s/%dx%d", strings.ReplaceAll(by, "_", "-"), n, n), func(b *testing.B) {
				b.ReportAllocs()
				draw := Draw{Random: 0x9e3779b97f4a7c15}
				for b.Loop() {
					draw.Turn++
					if c := pol.Choose(Request{Model: "tiny", PromptTokens: 10}, f, draw); !c.Split {
						b.Fatal(c)
					}
				}
			})
		}
	}
}
