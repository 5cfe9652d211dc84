package policies

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExplain: each engine of both stages is there, with what became of it.
func TestExplain(t *testing.T) {
	p, err := Parse("p.yaml", []byte("default: {prefill: {policy: least_load, filters: [{name: zone, zone: a}]}, decode: {scorers: [load, {name: prefix, weight: 2}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	a, b := &Placement{Zone: "a"}, &Placement{Zone: "b"}
	f := Fleet{
		Prefill:  []Engine{{Name: "p0", Usable: true, Place: a, InFlight: 3}, {Name: "p1", Usable: true, Place: b}, {Name: "p2", Place: a}, {Name: "p3", Usable: true, Place: a}},
		Decode:   []Engine{{Name: "d0", Usable: true}, {Name: "d1", Usable: true, InFlight: 4, Cached: 500}, {Name: "d2", Usable: true}},
		Pairable: func(p, d int) bool { return p != 3 && d != 2 },
	}
	c, stages := p.Explain(Request{PromptTokens: 1000}, f, Draw{})
	if c.Prefill != 0 || c.Decode != 0 {
		t.Errorf("engines %d and %d; want 0 and 0", c.Prefill, c.Decode)
	}
	want := []Stage{
		{Role: "prefill", Policy: "least_load", Picker: "best", Candidates: []Explained{
			{Engine: "p0", Scores: []Score{{"load", 1, 1}}, Sum: 1, Taken: true},
			{Engine: "p1", LeftOut: "left out by the filter zone"},
			{Engine: "p2", LeftOut: "it is not used now"},
			{Engine: "p3", LeftOut: "no decode engine that may be used pairs with it"},
		}},
		{Role: "decode", Policy: "scored", Picker: "best", Candidates: []Explained{
			{Engine: "d0", Scores: []Score{{"load", 1, 1}, {"prefix", 0, 2}}, Sum: 1, Taken: true},
			{Engine: "d1", Scores: []Score{{"load", 0, 1}, {"prefix", 0.5, 2}}, Sum: 1},
			{Engine: "d2", LeftOut: "it does not pair with the prefill engine"},
		}},
	}
	if d := cmp.Diff(stages, want); d != "" {
		t.Error("stages (-got +want):\n" + d)
	}
}

// TestExplainIsTheChoice: what is explained is what would have been chosen.
func TestExplainIsTheChoice(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 6))
		p := plainPolicy(t, presets[rng.IntN(len(presets))].name)
		f := Fleet{Prefill: randomEngines(rng), Decode: randomEngines(rng)}
		for _, es := range [][]Engine{f.Prefill, f.Decode} {
			for i := range es {
				es[i].Share, es[i].Cached = []float64{0, 1, 0.1, 0.5}[rng.IntN(4)], rng.IntN(50)
			}
		}
		q, d := Request{PromptTokens: 60, Session: rng.Uint64()}, Draw{Turn: rng.Uint64(), Random: rng.Uint64()}
		c, stages := p.Explain(q, f, d)
		if other := p.Choose(q, f, d); c.Prefill != other.Prefill || c.Decode != other.Decode || c.Reason != other.Reason {
			t.Fatalf("seed %d: %+v, chosen %+v", seed, c, other)
		}
		for _, s := range stages {
			engines, at := f.Decode, c.Decode
			if s.Role == "prefill" {
				engines, at = f.Prefill, c.Prefill
			}
			if len(s.Candidates) != len(engines) {
				t.Fatalf("seed %d: %d of %d engines are explained", seed, len(s.Candidates), len(engines))
			}
			for i, x := range s.Candidates {
				if s.Role == "prefill" && !c.Split {
					continue // no pair was found after it
				}
				if c.Split && x.Taken != (i == at) || x.Taken && x.LeftOut != "" {
					t.Fatalf("seed %d: engine %d of %s: %+v; chosen was %d", seed, i, s.Role, x, at)
				}
			}
		}
	}
}

// TestExplainCostMarksEngines: the engines of the path that the policy cost takes are marked as those of other policies are.
func TestExplainCostMarksEngines(t *testing.T) {
	p := costPolicy(t, "")
	for _, q := range []Request{{PromptTokens: 20_000}, {PromptTokens: 20_000, MustSplit: true}} {
		f := fleetOf([]known{at(0, 0, 0), at(1, 0, 0)}, []known{at(1, 0, 0), at(0, 0, 0)}, Demand{})
		f.Prefill[0].Name, f.Prefill[1].Name, f.Decode[0].Name, f.Decode[1].Name = "p0", "p1", "d0", "d1"
		c, stages := p.Explain(q, f, Draw{Turn: 1})
		for _, s := range stages[:2] {
			taken := c.Decode
			if s.Role == "prefill" {
				taken = c.Prefill
			}
			for i, x := range s.Candidates {
				if x.Taken != (i == taken) {
					t.Errorf("%+v: %s %s is taken: %t; want engine %d", q, s.Role, x.Engine, x.Taken, taken)
				}
			}
		}
	}
}
