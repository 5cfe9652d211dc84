package policies

import (
	"math/rand/v2"
	"testing"
)

// TestPrefix weighs what engines have of a prompt against what they have to do.
func TestPrefix(t *testing.T) {
	pol := plainPolicy(t, "prefix")
	idle := Engine{Usable: true}
	with := func(cached, inFlight, backlog int) Engine {
		return Engine{Usable: true, Cached: cached, InFlight: inFlight, Backlog: backlog}
	}
	for _, tt := range []struct {
		name    string
		engines []Engine
		want    int
		why     string
	}{
		{"most of the prompt", []Engine{idle, with(512, 0, 0), with(1024, 0, 0)}, 2, "decode prefix 1024 cached, 0 in flight"},
		{"though it is busy", []Engine{idle, with(1024, 3, 14_000)}, 1, "decode prefix 1024 cached, 3 in flight"},
		{"not if it has far more to compute", []Engine{idle, with(1024, 3, 15_000)}, 0, "decode prefix 0 cached (another 1024), 0 in flight"},
		{"not if it has far more in flight", []Engine{idle, with(1024, 33, 0)}, 0, "decode prefix 0 cached (another 1024), 0 in flight"},
		{"nobody is far ahead", []Engine{idle, with(100_000, 64, 0)}, 0, "decode prefix 0 cached (another 100000), 0 in flight"},
		{"but for a long prompt a little", []Engine{idle, with(100_000, 63, 0)}, 1, "decode prefix 100000 cached, 63 in flight"},
		{"nothing cached: least to do", []Engine{with(0, 2, 10), with(0, 1, 10)}, 1, "decode prefix 0 cached, 1 in flight"},
		{"nothing cached: one long prompt is more than two short", []Engine{with(0, 1, 10_000), with(0, 2, 200)}, 1, "decode prefix 0 cached, 2 in flight"},
		{"one that may not be used", []Engine{{Cached: 4096}, idle}, 1, "decode prefix 0 cached, 0 in flight"},
	} {
		c := pol.Choose(Request{Unsplittable: Aggregated}, Fleet{Decode: tt.engines}, Draw{})
		if c.Decode != tt.want || c.Why() != tt.why {
			t.Errorf("%s: engine %d, %q; want %d, %q", tt.name, c.Decode, c.Why(), tt.want, tt.why)
		}
	}
	c := pol.Choose(Request{}, Fleet{Prefill: []Engine{idle, with(512, 0, 0)}, Decode: []Engine{with(512, 1, 0), idle}}, Draw{})
	if want := "prefill prefix 512 cached, 0 in flight · decode least_load 0<1"; c.Prefill != 1 || c.Decode != 1 || c.Why() != want {
		t.Errorf("a pair: %d and %d, %q; want 1 and 1, %q: decode is handed what it does not have", c.Prefill, c.Decode, c.Why(), want)
	}
}

// TestPrefixTakesTurns: engines that have the same of a prompt and are as busy share what comes.
func TestPrefixTakesTurns(t *testing.T) {
	pol := plainPolicy(t, "prefix")
	f := Fleet{Decode: engines(1, 1, 1, 1)}
	f.Decode[0].Cached, f.Decode[2].Cached = 512, 512
	counts := make([]int, 4)
	for turn := range uint64(30) {
		counts[pol.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: turn}).Decode]++
	}
	if counts[0] != 15 || counts[2] != 15 {
		t.Errorf("chosen %d times; want 15, 0, 15, 0", counts)
	}
}

// TestPrefixIsNoHotSpot: requests that all begin alike are not for one engine. Whoever is given one has the beginning from then on;
// requests end in any order. No engine ever has many more in flight than another.
func TestPrefixIsNoHotSpot(t *testing.T) {
	pol := plainPolicy(t, "prefix")
	const shared = 30_000
	f := Fleet{Decode: engines(0, 0, 0, 0)}
	rng := rand.New(rand.NewPCG(4, 4))
	var flying []int
	for turn := range uint64(4000) {
		if len(flying) > 200 {
			i := rng.IntN(len(flying))
			f.Decode[flying[i]].InFlight--
			flying[i] = flying[len(flying)-1]
			flying = flying[:len(flying)-1]
		}
		at := pol.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: turn}).Decode
		f.Decode[at].InFlight++
		f.Decode[at].Cached = shared
		flying = append(flying, at)
		least, most := 1<<30, 0
		for _, e := range f.Decode {
			least, most = min(least, e.InFlight), max(most, e.InFlight)
		}
		if most-least > mostAhead+1 { // one may have ended with the other since
			t.Fatalf("turn %d: %d in flight with one engine and %d with another; want at most %d more", turn, most, least, mostAhead)
		}
	}
	for i, e := range f.Decode {
		if e.InFlight < 40 || e.InFlight > 60 {
			t.Errorf("engine %d has %d of 200 in flight; want a quarter", i, e.InFlight)
		}
	}
}

// TestPrefixes says which models' rules look at prefixes.
func TestPrefixes(t *testing.T) {
	p, err := New(Config{
		Rules:   []Rule{{Name: "long", Models: []string{"long"}, Choosing: Choosing{Prefill: Role{Policy: "prefix"}}}},
		Default: Choosing{Decode: Role{Policy: "prefix"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string][2]bool{"long": {true, true}, "other": {false, true}} {
		if prefill, decode := p.Prefixes(model); prefill != want[0] || decode != want[1] {
			t.Errorf("%s: %v, %v; want %v", model, prefill, decode, want)
		}
	}
}
