package policies

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestStartingEnginesGetTheirShare: whatever picks, and however idle it is, an engine with share s gets about s of its part
// and never much more; the others get the rest, evenly where they are alike.
func TestStartingEnginesGetTheirShare(t *testing.T) {
	const draws = 20000
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		by := presets[seed%uint64(len(presets))].name
		pol := plainPolicy(t, by)
		n := 2 + rng.IntN(6)
		f := Fleet{Decode: engines(make([]int, n)...)}
		slow := rng.IntN(n)
		share := 0.1 + 0.85*rng.Float64()
		f.Decode[slow].Share = share
		for i := range f.Decode {
			if i != slow {
				f.Decode[i].InFlight = 3 // an engine that starts has less to do than others
			}
		}
		counts := make([]int, n)
		for turn := range uint64(draws) {
			counts[pol.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: turn, Random: rng.Uint64()}).Decode]++
		}
		if want := draws * share / (float64(n-1) + share); float64(counts[slow]) < want*0.8 || float64(counts[slow]) > want*1.2 {
			t.Errorf("seed %d, %s, %d engines: share %.2f chosen %d times; want about %.0f", seed, by, n, share, counts[slow], want)
		}
		for i, got := range counts {
			if want := float64(draws-counts[slow]) / float64(n-1); i != slow && (float64(got) < want*0.85 || float64(got) > want*1.15) {
				t.Errorf("seed %d, %s: engine %d chosen %d times; want about %.0f: %v", seed, by, i, got, want, counts)
			}
		}
	}
}

// TestAllStarting: engines that all start share evenly, however far each is.
func TestAllStarting(t *testing.T) {
	for _, by := range presetNames() {
		pol := plainPolicy(t, by)
		rng := rand.New(rand.NewPCG(9, nameHash(by)))
		f := Fleet{Decode: engines(1, 1, 1, 1)}
		for i := range f.Decode {
			f.Decode[i].Share = 0.1 + 0.2*float64(i)
		}
		f.Decode[3].Usable = false
		counts := make([]int, 4)
		for turn := range uint64(9000) {
			counts[pol.Choose(Request{Unsplittable: Aggregated}, f, Draw{Turn: turn, Random: rng.Uint64()}).Decode]++
		}
		for i, n := range counts {
			if i < 3 && (n < 2800 || n > 3200) || i == 3 && n != 0 {
				t.Errorf("%s: %v", by, counts)
				break
			}
		}
	}
}

// TestStartingProperties checks what every choice must keep where some engines start, and that it is the same every time.
func TestStartingProperties(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		by := presets[rng.IntN(len(presets))].name
		pol := plainPolicy(t, by)
		f := Fleet{Prefill: randomEngines(rng), Decode: randomEngines(rng)}
		for _, es := range [][]Engine{f.Prefill, f.Decode} {
			for i := range es {
				es[i].Share = []float64{0, 1, 0.1, 0.5}[rng.IntN(4)]
			}
		}
		pairs := make([]bool, 64)
		for i := range pairs {
			pairs[i] = rng.IntN(3) > 0
		}
		f.Pairable = func(p, d int) bool { return pairs[p*8+d] }
		draw := Draw{Turn: rng.Uint64(), Random: rng.Uint64()}
		c := pol.Choose(Request{PromptTokens: 1}, f, draw)
		if err := holds(f, c, "random"); err != nil { // by no load: one that starts may have the least and not be chosen
			t.Fatalf("seed %d, %s: %v\nfleet %+v\nchoice %+v", seed, by, err, f, c)
		}
		if again := pol.Choose(Request{PromptTokens: 1}, f, draw); fmt.Sprint(again) != fmt.Sprint(c) {
			t.Fatalf("seed %d, %s: %+v, then %+v", seed, by, c, again)
		}
	}
}

func TestChooseStartingAllocatesNothing(t *testing.T) {
	skipRaced(t)
	f := bigFleet(16)
	f.Prefill[3].Share, f.Decode[5].Share = 0.3, 0.2
	for _, by := range presetNames() {
		pol := plainPolicy(t, by)
		draw := Draw{Random: 0x9e3779b97f4a7c15}
		if allocs := testing.AllocsPerRun(200, func() { draw.Turn++; pol.Choose(Request{PromptTokens: 10}, f, draw) }); allocs != 0 {
			t.Errorf("%s: %v allocations", by, allocs)
		}
	}
}
