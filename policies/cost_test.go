package policies

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// costPolicy is the policy cost.
func costPolicy(t testing.TB, more string) *Policy {
	t.Helper()
	p, err := Parse("test.yaml", []byte("default: {policy: cost"+more+"}"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// evenSpeed reads 100,000 tokens of prompts a second and computes 10,000; a step takes 10 ms and a stream adds 1 ms to it.
var evenSpeed = Speed{Prompt: [6]float64{0, 1e-5, 0, 1e-4, 0, 0}, Step: [3]float64{.01, .001, 0}, LongGaps: 5}

// known is an engine and what is known of it.
type known struct {
	Engine
	Work
}

// at is an engine with so many seconds of prompts to compute and so many streams.
func at(wait float64, streams int, cached int) known {
	return known{Engine{Usable: true, Cached: cached}, Work{Wait: wait, Streams: streams, Speed: evenSpeed}}
}

// fleetOf is a fleet of these engines.
func fleetOf(prefill, decode []known, d Demand) Fleet {
	f := Fleet{Forecast: &Forecast{Demand: d}}
	for _, k := range prefill {
		f.Prefill, f.Forecast.Prefill = append(f.Prefill, k.Engine), append(f.Forecast.Prefill, k.Work)
	}
	for _, k := range decode {
		f.Decode, f.Forecast.Decode = append(f.Decode, k.Engine), append(f.Forecast.Decode, k.Work)
	}
	return f
}

func TestCost(t *testing.T) {
	demand := Demand{Rate: 4, Answer: 100, LongGaps: 10, Error: .1, Move: [3]float64{.001, 1e-6, 0}}
	never := func(int, int) bool { return false }
	busy := func(k known, prompts float64) known { k.Prompts = prompts; return k }
	out := func(k known) known { k.Out = true; return k }
	type answer struct {
		Prefill, Decode int
		Reason          Reason
	}
	for _, tt := range []struct {
		name            string
		more            string
		q               Request
		prefill, decode []known
		pairable        func(p, d int) bool
		want            answer
	}{
		{name: "idle engines: decode alone spares the transfer", q: Request{PromptTokens: 1000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 0, 0)}, want: answer{-1, 0, Cheaper}},
		{name: "a prompt would hold up streams", q: Request{PromptTokens: 5000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 9, 0)}, want: answer{0, 0, Split}},
		{name: "decode has the prompt already", q: Request{PromptTokens: 5000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 3, 4990)}, want: answer{-1, 0, Cheaper}},
		{name: "prefill with the prefix", q: Request{PromptTokens: 9000}, prefill: []known{at(0, 0, 0), at(0, 0, 8000)}, decode: []known{at(0, 9, 0)}, want: answer{1, 0, Split}},
		{name: "the prefix is not worth the wait", q: Request{PromptTokens: 9000}, prefill: []known{at(0, 0, 0), at(1.9, 0, 8000)}, decode: []known{at(0, 9, 0)}, want: answer{0, 0, Split}},
		{name: "a short wait is", q: Request{PromptTokens: 9000}, prefill: []known{at(0, 0, 0), at(.3, 0, 8000)}, decode: []known{at(0, 9, 0)}, want: answer{1, 0, Split}},
		{name: "decode that can take another stream", q: Request{PromptTokens: 3000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 42, 0), at(0, 20, 0)}, want: answer{0, 1, Split}},
		{name: "decode that computes no prompts", q: Request{PromptTokens: 3000}, prefill: []known{at(0, 0, 0)}, decode: []known{busy(at(0, 1, 0), .5), at(0, 8, 0)}, want: answer{0, 1, Split}},
		{name: "what is late anyway waits where others do", q: Request{PromptTokens: 40000}, prefill: []known{busy(at(0, 0, 0), .9), busy(at(3, 0, 0), .9)}, decode: []known{at(0, 30, 0)}, want: answer{1, 0, Split}},
		{name: "it does not where the others have little to do", q: Request{PromptTokens: 40000}, prefill: []known{at(0, 0, 0), at(3, 0, 0)}, decode: []known{at(0, 30, 0)}, want: answer{0, 0, Split}},
		{name: "the request's own objective", q: Request{PromptTokens: 9000, Objective: Objective{TTFT: 1}}, prefill: []known{at(0, 0, 0), at(1, 0, 8000)}, decode: []known{at(0, 9, 0)}, want: answer{0, 0, Split}},
		{name: "nobody pairs", q: Request{PromptTokens: 5000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 9, 0)}, pairable: never, want: answer{-1, 0, NoPair}},
		{name: "nobody pairs, refused", more: ", split: {on_no_prefill: reject}", q: Request{PromptTokens: 5000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 9, 0)}, pairable: never, want: answer{-1, -1, NoPair}},
		{name: "no prefill", q: Request{PromptTokens: 5000}, decode: []known{at(0, 9, 0)}, want: answer{-1, 0, NoPrefill}},
		{name: "decode serves none alone", q: Request{PromptTokens: 1000, MustSplit: true}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 0, 0)}, want: answer{0, 0, Split}},
		{name: "decode serves none alone and nobody pairs", q: Request{PromptTokens: 1000, MustSplit: true}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 0, 0)}, pairable: never, want: answer{-1, -1, NoPair}},
		{name: "what is out fails its requests", q: Request{PromptTokens: 1000}, decode: []known{out(at(0, 0, 900)), at(.1, 3, 0)}, want: answer{-1, 1, NoPrefill}},
		{name: "what is out is asked where the others are late", q: Request{PromptTokens: 1000}, decode: []known{out(at(0, 0, 0)), at(9, 20, 0)}, want: answer{-1, 0, NoPrefill}},
		{name: "no decode", q: Request{PromptTokens: 1000}, prefill: []known{at(0, 0, 0)}, want: answer{-1, -1, NoDecode}},
		{name: "short", more: ", split: {min_prompt_tokens: 600}", q: Request{PromptTokens: 500}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 40, 0)}, want: answer{-1, 0, ShortPrompt}},
		{name: "unsplittable", q: Request{PromptTokens: 5000, Unsplittable: "n>1"}, prefill: []known{at(0, 0, 0)}, decode: []known{at(1, 9, 0), at(0, 9, 0)}, want: answer{-1, 1, "n>1"}},
		{name: "a filter", more: ", decode: {filters: [{name: zone, zone: a, strict: true}]}", q: Request{PromptTokens: 5000}, prefill: []known{at(0, 0, 0)}, decode: []known{at(0, 0, 0)}, want: answer{-1, -1, NoDecode}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fleetOf(tt.prefill, tt.decode, demand)
			f.Pairable = tt.pairable
			c := costPolicy(t, tt.more).Choose(tt.q, f, Draw{})
			if got := (answer{c.Prefill, c.Decode, c.Reason}); got != tt.want || c.Split != (c.Prefill >= 0) || c.Decode >= 0 && !(c.TTFT > 0) {
				t.Errorf("got %+v (%+v); want %+v", got, c, tt.want)
			}
		})
	}
}

// randomWork is an engine in any state.
func randomWork(rng *rand.Rand, name string) known {
	e := at(3*rng.Float64()*float64(rng.IntN(2)), rng.IntN(40)*rng.IntN(2), rng.IntN(20_000)*rng.IntN(2))
	e.Name, e.Usable, e.Prompts, e.Context = name, rng.IntN(8) > 0, .9*rng.Float64()*float64(rng.IntN(2)), rng.IntN(1000)*e.Streams
	return e
}

// TestCostTakesTheCheapest holds choices against the list of all paths with their prices, which is made without leaving any out.
func TestCostTakesTheCheapest(t *testing.T) {
	p := costPolicy(t, "")
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := Demand{Rate: 10 * rng.Float64(), Answer: 500 * rng.Float64(), LongGaps: 200*rng.Float64() - 20, Error: rng.Float64(), Move: [3]float64{.001, 1e-6, 0}}
		var prefill, decode []known
		for i := range 1 + rng.IntN(8) {
			prefill = append(prefill, randomWork(rng, fmt.Sprint("p", i)))
		}
		for i := range 1 + rng.IntN(8) {
			decode = append(decode, randomWork(rng, fmt.Sprint("d", i)))
		}
		f := fleetOf(prefill, decode, d)
		pairs := rng.Uint64() | rng.Uint64()
		f.Pairable = func(p, d int) bool { return pairs>>(8*p+d)&1 == 1 }
		q := Request{PromptTokens: rng.IntN(50_000), MustSplit: rng.IntN(5) == 0}
		draw := Draw{Turn: rng.Uint64() % 1000, Random: rng.Uint64()}
		c := p.Choose(q, f, draw)
		explained, stages := p.Explain(q, f, draw)
		if c.Prefill != explained.Prefill || c.Decode != explained.Decode || c.Reason != explained.Reason {
			t.Fatalf("seed %d: chosen %+v, explained %+v", seed, c, explained)
		}
		if c.Decode < 0 {
			continue
		}
		paths := stages[len(stages)-1].Paths
		least, taken := math.Inf(1), Path{}
		for _, x := range paths {
			least = min(least, x.Price)
			if x.Taken {
				if taken.Decode != "" {
					t.Fatalf("seed %d: two paths are taken", seed)
				}
				taken = x
			}
		}
		name := ""
		if c.Split {
			name = f.Prefill[c.Prefill].Name
		}
		if taken.Price != least || taken.Decode != f.Decode[c.Decode].Name || taken.Prefill != name {
			t.Fatalf("seed %d: took %+v for %+v; the lowest price is %v", seed, taken, c, least)
		}
		if !f.Decode[c.Decode].Usable || c.Split && (!f.Prefill[c.Prefill].Usable || !f.Pairable(c.Prefill, c.Decode)) || q.MustSplit && !c.Split {
			t.Fatalf("seed %d: took %+v, which may not be", seed, c)
		}
	}
}

// TestCostPart: an engine in its slow start gets its turns, and an explanation says why the others were left out then.
func TestCostPart(t *testing.T) {
	p := costPolicy(t, "")
	fresh, old := at(0, 0, 0), at(0, 0, 900)
	fresh.Name, fresh.Share, old.Name = "fresh", .5, "old"
	f := fleetOf(nil, []known{fresh, old}, Demand{})
	taken := [2]int{}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		d := Draw{Random: rng.Uint64()}
		c, stages := p.Explain(Request{PromptTokens: 1000}, f, d)
		taken[c.Decode]++
		other := stages[0].Candidates[1-c.Decode]
		why := []string{"it was the turn of an engine with less than a full part", "it has less than a full part, and it was not its turn"}[c.Decode]
		if other.LeftOut != why {
			t.Fatalf("took %d; %+v", c.Decode, other)
		}
	}
	if taken[0] < 250 || taken[0] > 420 { // a third
		t.Errorf("taken %v", taken)
	}
}

// TestCostEqualsTakeTurns: engines without a forecast cost the same, and take turns.
func TestCostEqualsTakeTurns(t *testing.T) {
	p := costPolicy(t, "")
	got := [3]int{}
	for turn := range uint64(30) {
		got[p.Choose(Request{PromptTokens: 100}, Fleet{Decode: engines(0, 0, 0)}, Draw{Turn: turn}).Decode]++
	}
	if got != [3]int{10, 10, 10} {
		t.Errorf("got %v", got)
	}
}

// TestCostAllocatesNothing, and neither do filters.
func TestCostAllocatesNothing(t *testing.T) {
	skipRaced(t)
	p := costPolicy(t, ", decode: {filters: [prompt_tokens]}")
	rng := rand.New(rand.NewPCG(1, 1))
	var prefill, decode []known
	for range 64 {
		prefill, decode = append(prefill, randomWork(rng, "p")), append(decode, randomWork(rng, "d"))
	}
	f := fleetOf(prefill, decode, Demand{Rate: 10, Answer: 300})
	turn := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		turn++
		p.Choose(Request{PromptTokens: 5000}, f, Draw{Turn: turn})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCost is one choice among 64 engines of either role: in the mean, and of a hundred choices the slowest but one, with what else the machine does
// meanwhile (p99-ns/op) and by the fastest time of each of a thousand choices that are made again and again (p99-fastest-ns/op).
func BenchmarkCost(b *testing.B) {
	p := costPolicy(b, "")
	rng := rand.New(rand.NewPCG(1, 1))
	var all []known
	for range 64 {
		all = append(all, randomWork(rng, "e"))
	}
	f := fleetOf(all, all, Demand{Rate: 10, Answer: 300, LongGaps: 50, Error: .1})
	f.Pairable = func(p, d int) bool { return p != d }
	const choices = 1000
	n := 0
	var took []time.Duration
	fastest := slices.Repeat([]time.Duration{time.Hour}, choices)
	b.ReportAllocs()
	for b.Loop() {
		turn := uint64(n % choices)
		began := time.Now()
		p.Choose(Request{PromptTokens: 1000 + int(turn*7919%20_000)}, f, Draw{Turn: turn})
		d := time.Since(began)
		took, fastest[turn] = append(took, d), min(fastest[turn], d)
		n++
	}
	for what, times := range map[string][]time.Duration{"p99-ns/op": took, "p99-fastest-ns/op": fastest} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)*99/100]), what)
	}
}

// TestCostOptions: what is set of an objective holds, also a weight of 0, and what cannot be is refused.
func TestCostOptions(t *testing.T) {
	o := costPolicy(t, ", objective: {tolerance: 0.2, late_weight: 0}").Objective("")
	if want := (Objective{TTFT: 2, ITL: .05, Tolerance: .2}); o != want {
		t.Errorf("got %+v; want %+v", o, want)
	}
	_, err := Parse("test.yaml", []byte("default: {objective: {tolerance: 1.5, late_weight: -1}}"))
	for _, want := range []string{"default.objective.tolerance is 1.5; want more than 0, at most 1", "default.objective.late_weight is -1; want 0 to 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %s", err, want)
		}
	}
}

// TestOvertakingPrompts: a prompt that is read before a longer one is thought to have its first token sooner. It is priced as if it waited, since
// the longer one waits instead.
func TestOvertakingPrompts(t *testing.T) {
	p := costPolicy(t, "")
	waits := at(1, 0, 0)
	overtakes := waits
	overtakes.Soon, overtakes.Reading = .25, .5
	q := Request{PromptTokens: 1000, Unsplittable: Aggregated} // read in 10 ms, computed in 100
	for _, row := range []struct {
		name   string
		decode known
		tokens int
		want   float64
	}{{"read", waits, 1000, 1.1}, {"it is read sooner", overtakes, 1000, .35}, {"it is read later", overtakes, 60_000, 7}} {
		q.PromptTokens = row.tokens
		got := p.Choose(q, fleetOf(nil, []known{row.decode}, Demand{}), Draw{})
		if d := float64(got.TTFT) - row.want; d > .01 || d < -.01 {
			t.Errorf("%s: a first token after %v s; want %v", row.name, got.TTFT, row.want)
		}
		if plain := p.Choose(q, fleetOf(nil, []known{waits}, Demand{}), Draw{}); got.why.price != plain.why.price {
			t.Errorf("%s: a price of %v; want %v", row.name, got.why.price, plain.why.price)
		}
	}
}
