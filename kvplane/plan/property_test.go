package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/metadata"
)

// TestPlanEqualsNaiveModel compares the plan, byte by byte and both as ranges and as descriptors, with a model
// that knows only the formula of an address, over layouts drawn from every class that the plane promises.
func TestPlanEqualsNaiveModel(t *testing.T) {
	worlds := uint64(900)
	if testing.Short() {
		worlds = 270
	}
	seen := map[string]int{}
	for seed := range worlds {
		w := drawWorld(seed)
		for _, class := range w.seen {
			seen[class]++
		}
		if w.check(t, seed); t.Failed() {
			t.Fatalf("seed %d: %+v", seed, w)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%4d %s", seen[class], class)
	}
	want := []string{
		"MLA", "MLA beside full attention", "P's TP above the heads", "D's TP above the heads",
		"p has 1 stages", "p has 2 stages", "p has 4 stages", "d has 1 stages", "d has 2 stages", "d has 4 stages", "uneven stages",
		"D's kernel blocks larger", "P's kernel blocks larger", "physical per logical differs",
		"1 groups", "2 groups", "3 groups", "groups pooled in one tensor", "window shorter than the request", "a window's list is a tail",
		"D holds none of the prefix", "D holds a part of the prefix", "D holds all of the prefix",
		"lists of unequal length", "a list begins inside of a logical block", "zero blocks", "one block", "last block partly filled",
		"heads inside the block stride", "heads outside the block stride", "padded stride", "order hnd", "order nhd", "blocks in a row",
	}
	for _, r := range tensorRatios {
		want = append(want, fmt.Sprintf("TP %d:%d", r[0], r[1]))
	}
	for _, class := range want {
		if least := 20; seen[class] < least {
			t.Errorf("%q was drawn %d times; want at least %d", class, seen[class], least)
		}
	}
}

// check plans the world's transfer between all ranks and compares it with the model.
func (w *layoutWorld) check(t *testing.T, seed uint64) {
	t.Helper()
	ps, psize := w.records(&w.p)
	ds, dsize := w.records(&w.d)
	memory := map[string][]uint64{}
	for _, r := range ps {
		m := make([]uint64, psize)
		for g, l := range w.p.lists {
			end := (l.First/w.p.logical + len(l.Blocks)) * w.p.logical
			w.each(&w.p, r, g, l.First, end, func(at, content uint64) {
				if m[at] != 0 {
					t.Fatalf("seed %d: the draw itself is wrong: two things at %d", seed, at)
				}
				m[at] = content
			})
		}
		memory[r.Agent] = m
	}
	owed := map[string]int{}
	for _, dr := range ds {
		want, got, byPlace := make([]uint64, dsize), make([]uint64, dsize), make([]uint64, dsize)
		for g := range w.groups {
			from, to := w.tokens(g)
			w.each(&w.d, dr, g, from, to, func(at, content uint64) { want[at] = content })
		}
		producers, err := Producers(ps, dr, Allow{TokensFirstSplit: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		writers := make([]map[string]bool, len(w.groups)) // by group
		for g := range writers {
			writers[g] = map[string]bool{}
		}
		for _, x := range producers {
			owed[x.Record.Agent]++
			wrote := w.copyOnce(t, seed, x.Record, dr, memory[x.Record.Agent], got, byPlace)
			for g, did := range wrote {
				if did {
					writers[g][x.Record.Agent] = true
				}
			}
			if any := slices.Contains(wrote, true); any && !x.Writes || !any && x.Writes && w.need[0] < w.need[1] {
				t.Errorf("seed %d: %s writes is %t and it wrote %v", seed, x.Record.Agent, x.Writes, wrote)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("seed %d: the ranges bring rank %s other bytes than the model", seed, dr.Rank)
		}
		if !slices.Equal(byPlace, want) {
			t.Errorf("seed %d: the places bring rank %s other bytes than the model", seed, dr.Rank)
		}
		w.checkCounts(t, seed, dr, producers, writers)
	}
	for _, pr := range ps {
		consumers, err := Consumers(pr, ds, Allow{TokensFirstSplit: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		delta := 0
		for _, stage := range w.d.stages {
			if common(stage, w.p.stages[pr.Rank.PP], nil) {
				delta++
			}
		}
		if n := Count(w.p.tp, w.d.tp, 1, 1, delta).Owed; len(consumers) != n || owed[pr.Agent] != n {
			t.Errorf("seed %d: %s owes %d consumers, and %d expect it; want %d", seed, pr.Agent, len(consumers), owed[pr.Agent], n)
		}
	}
}

// tokens is what of a group is copied: formula 4.2 of the protocol, written a second time.
func (w *layoutWorld) tokens(g int) (from, to int) {
	if w.need[0] == w.need[1] {
		return 0, 0
	}
	p, d := w.p.lists[g], w.d.lists[g]
	u := float64(min(w.p.kernel(), w.d.kernel()))
	to = int(math.Ceil(float64(w.n)/u) * u)
	to = min(to, (p.First/w.p.logical+len(p.Blocks))*w.p.logical, (d.First/w.d.logical+len(d.Blocks))*w.d.logical)
	from = max(p.First, d.First)
	if x := w.groups[g].Window; x > 0 {
		from = max(from, int(math.Floor(float64(w.need[1]-x)/float64(w.d.kernel())))*w.d.kernel())
	}
	return from, to
}

// copyOnce copies what a producer plans for a consumer, both ways, and returns for which groups it wrote.
func (w *layoutWorld) copyOnce(t *testing.T, seed uint64, pr, dr metadata.Record, memory, got, byPlace []uint64) []bool {
	t.Helper()
	wrote := make([]bool, len(w.groups))
	q, err := New(pr, dr, Allow{TokensFirstSplit: true})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	put := func(into []uint64, local, remote, length uint64) {
		for i := range length {
			at, from := remote-worldBase+i, local-worldBase+i
			if into[at] != 0 {
				t.Fatalf("seed %d: byte %d of %s is written twice", seed, at, dr.Agent)
			}
			into[at] = memory[from]
			if layer := memory[from] >> 40; layer > 0 {
				wrote[w.of[layer-1]] = true
			}
		}
	}
	ranges, err := q.Plan(nil, w.n, w.need, w.p.lists, w.d.lists)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for _, r := range ranges {
		put(got, r.Local, r.Remote, r.Length)
	}
	local, remote, err := q.PlanDescriptors(nil, nil, w.n, w.need, w.p.lists, w.d.lists)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if len(local) != len(remote) || len(local) != q.Copies() || len(local) < len(ranges) {
		t.Errorf("seed %d: %d and %d places for %d copies in %d ranges", seed, len(local), len(remote), q.Copies(), len(ranges))
	}
	here, there := q.Descriptors()
	for i := range local {
		a, n := plantest.Placed(here, local[i])
		b, m := plantest.Placed(there, remote[i])
		if n != m {
			t.Fatalf("seed %d: place %d has %d bytes, place %d has %d", seed, local[i], n, remote[i], m)
		}
		put(byPlace, a, b, n)
	}
	return wrote
}

// checkCounts compares the sets with the formulas of section «Who writes what».
func (w *layoutWorld) checkCounts(t *testing.T, seed uint64, dr metadata.Record, producers []Producer, writers []map[string]bool) {
	t.Helper()
	sigma := 0
	for _, stage := range w.p.stages {
		if common(stage, w.d.stages[dr.Rank.PP], nil) {
			sigma++
		}
	}
	if n := Count(w.p.tp, w.d.tp, 1, sigma, 1).Expected; len(producers) != n {
		t.Errorf("seed %d: %s expects %d producers; want %d", seed, dr.Agent, len(producers), n)
	}
	for g, x := range w.groups {
		sigma := 0
		for _, stage := range w.p.stages {
			if common(stage, w.d.stages[dr.Rank.PP], func(layer int) bool { return w.of[layer] == g }) {
				sigma++
			}
		}
		n := 0
		if sigma > 0 && w.need[0] < w.need[1] {
			n = Count(w.p.tp, w.d.tp, x.Heads, sigma, 1).Writers
		}
		if len(writers[g]) != n {
			t.Errorf("seed %d: %d producers write group %d for %s; want %d", seed, len(writers[g]), g, dr.Agent, n)
		}
	}
}

// common says whether two stages share a layer, of those that count.
func common(a, b []int, counts func(int) bool) bool {
	return slices.ContainsFunc(a, func(l int) bool { return slices.Contains(b, l) && (counts == nil || counts(l)) })
}
