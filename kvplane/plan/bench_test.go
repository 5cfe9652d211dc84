package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
)

// largePlan is the pair and the block lists of 1,000 blocks in 80 layers.
func largePlan(t testing.TB, dtp int, scattered bool) (*Pair, []transfer.BlockList) {
	t.Helper()
	var layers []int
	for i := range 80 {
		layers = append(layers, i)
	}
	p := plantest.Spec{Heads: 8, Logical: 16, HeadBytes: 256, Blocks: 1100, Stages: [][]int{layers}}.WithDefaults()
	d := p
	d.TP = dtp
	l := transfer.BlockList{}
	rng := rand.New(rand.NewPCG(1, 1))
	for i, id := range rng.Perm(1000) {
		if !scattered {
			id = i
		}
		l.Blocks = append(l.Blocks, int32(id))
	}
	q, err := New(p.Records("p")[0], d.Records("d")[0], Allow{})
	if err != nil {
		t.Fatal(err)
	}
	return q, []transfer.BlockList{l}
}

// TestPlanAllocatesNothing plans into the caller's buffers.
func TestPlanAllocatesNothing(t *testing.T) {
	q, lists := largePlan(t, 4, true)
	ranges := make([]transfer.Range, 0, 1<<17)
	local, remote := make([]int32, 0, 1<<17), make([]int32, 0, 1<<17)
	plan := func() {
		got, err := q.Plan(ranges, 16000, [2]int{0, 16000}, lists, lists)
		if err != nil || len(got) != 80000 || &got[0] != &ranges[:1][0] {
			t.Fatalf("%d ranges, %v; want 80000 in the buffer given", len(got), err)
		}
	}
	places := func() {
		from, to, err := q.PlanDescriptors(local, remote, 16000, [2]int{0, 16000}, lists, lists)
		if err != nil || len(from) != 80000 || len(to) != 80000 || &from[0] != &local[:1][0] || &to[0] != &remote[:1][0] {
			t.Fatalf("%d and %d places, %v; want 80000 in the buffers given", len(from), len(to), err)
		}
	}
	plan() // the pair's own scratch grows once
	places()
	for name, f := range map[string]func(){"ranges": plan, "places": places} {
		if n := testing.AllocsPerRun(10, f); n != 0 {
			t.Errorf("%s: %v allocations a plan; want none", name, n)
		}
	}
}

// BenchmarkPlan plans 1,000 blocks in 80 layers. The limit is 1 ms.
func BenchmarkPlan(b *testing.B) {
	for _, bc := range []struct {
		name      string
		dtp       int
		scattered bool
	}{{"scattered", 1, true}, {"in a row", 1, false}, {"scattered, TP 1 to 4", 4, true}} {
		q, lists := largePlan(b, bc.dtp, bc.scattered)
		need := [2]int{0, 16000}
		b.Run(fmt.Sprintf("ranges, %s", bc.name), func(b *testing.B) {
			var buf []transfer.Range
			var err error
			b.ReportAllocs()
			for b.Loop() {
				if buf, err = q.Plan(buf[:0], 16000, need, lists, lists); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("places, %s", bc.name), func(b *testing.B) {
			var local, remote []int32
			var err error
			b.ReportAllocs()
			for b.Loop() {
				if local, remote, err = q.PlanDescriptors(local[:0], remote[:0], 16000, need, lists, lists); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
