package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

var vectors = []struct {
	name  string
	p, d  plantest.Spec
	n     int
	need  [2]int
	allow Allow
	want  map[string]string // "P0→D0": ranges by remote address; pairs left out write nothing
	only  string            // "notify" pairs, space separated
	rest  string            // of D0
}{
	{name: "1 equal, merge", n: 12, need: [2]int{0, 12},
		p:    plantest.Spec{Heads: 2, Logical: 4, Lists: plantest.List(0, 3, 4, 7)},
		d:    plantest.Spec{Heads: 2, Logical: 4, Lists: plantest.List(0, 10, 11, 5)},
		want: map[string]string{"P0→D0": "56>40:8 24>80:16"}},
	{name: "2 TP 1:2", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{Heads: 4, Logical: 2, Lists: plantest.List(0, 1, 3)},
		d:    plantest.Spec{TP: 2, Heads: 4, Logical: 2, Lists: plantest.List(0, 5, 6)},
		want: map[string]string{"P0→D0": "8>20:4 24>24:4", "P0→D1": "12>20:4 28>24:4"}},
	{name: "3 TP 4:2", n: 3, need: [2]int{0, 3},
		p: plantest.Spec{TP: 4, Heads: 4, Logical: 2, Lists: plantest.List(0, 1, 2)},
		d: plantest.Spec{TP: 2, Heads: 4, Logical: 2, Lists: plantest.List(0, 3, 7)},
		want: map[string]string{"P0→D0": "2>12:2 4>28:2", "P1→D0": "2>14:2 4>30:2",
			"P2→D1": "2>12:2 4>28:2", "P3→D1": "2>14:2 4>30:2"}},
	{name: "4 MLA 1:2", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0, 2)},
		d:    plantest.Spec{TP: 2, Heads: 1, Logical: 4, Lists: plantest.List(0, 6)},
		want: map[string]string{"P0→D0": "8>24:4", "P0→D1": "8>24:4"}},
	{name: "5 MLA 4:2", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{TP: 4, Heads: 1, Logical: 4, Lists: plantest.List(0, 2)},
		d:    plantest.Spec{TP: 2, Heads: 1, Logical: 4, Lists: plantest.List(0, 6)},
		want: map[string]string{"P0→D0": "8>24:4", "P2→D1": "8>24:4"}, only: "P1→D0 P3→D1"},
	{name: "6 TP > heads", n: 2, need: [2]int{0, 2},
		p:    plantest.Spec{TP: 4, Heads: 2, Logical: 2, Lists: plantest.List(0, 3)},
		d:    plantest.Spec{Heads: 2, Logical: 2, Lists: plantest.List(0, 1)},
		want: map[string]string{"P0→D0": "6>4:2", "P2→D0": "6>6:2"}, only: "P1→D0 P3→D0"},
	{name: "7 D TP > heads", n: 2, need: [2]int{0, 2},
		p:    plantest.Spec{TP: 2, Heads: 2, Logical: 2, Lists: plantest.List(0, 3)},
		d:    plantest.Spec{TP: 4, Heads: 2, Logical: 2, Lists: plantest.List(0, 1)},
		want: map[string]string{"P0→D0": "6>2:2", "P0→D1": "6>2:2", "P1→D2": "6>2:2", "P1→D3": "6>2:2"}},
	{name: "8 small to large, NHD", n: 5, need: [2]int{0, 5},
		p:    plantest.Spec{Heads: 2, Logical: 2, Order: metadata.TokensFirst, Lists: plantest.List(0, 4, 5, 9)},
		d:    plantest.Spec{Heads: 2, Logical: 4, Order: metadata.TokensFirst, Lists: plantest.List(0, 1, 2)},
		want: map[string]string{"P0→D0": "16>8:8 36>16:4"}, rest: "20..23"},
	{name: "9 small to large, HND", n: 5, need: [2]int{0, 5},
		p:    plantest.Spec{Heads: 2, Logical: 2, Lists: plantest.List(0, 4, 5, 9)},
		d:    plantest.Spec{Heads: 2, Logical: 4, Lists: plantest.List(0, 1, 2)},
		want: map[string]string{"P0→D0": "16>8:2 20>10:2 18>12:2 22>14:2 36>16:2 38>20:2"}, rest: "18..19 22..23"},
	{name: "10 large to small", n: 6, need: [2]int{0, 6},
		p:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0, 2, 0)},
		d:    plantest.Spec{Heads: 1, Logical: 2, Lists: plantest.List(0, 7, 8, 1)},
		want: map[string]string{"P0→D0": "0>2:2 8>14:4"}},
	{name: "11 physical blocks differ", n: 11, need: [2]int{0, 11},
		p:    plantest.Spec{Heads: 1, Logical: 4, Physical: 2, Lists: plantest.List(0, 1, 4, 2)},
		d:    plantest.Spec{Heads: 1, Logical: 8, Physical: 4, Lists: plantest.List(0, 3, 0)},
		want: map[string]string{"P0→D0": "8>0:4 4>24:4 16>28:4"}},
	{name: "12 prefix and a spare block", n: 14, need: [2]int{8, 14},
		p:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0, 0, 1, 2, 5)},
		d:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(8, 9, 4, 6)},
		want: map[string]string{"P0→D0": "20>16:4 8>36:4"}},
	{name: "13 window", n: 14, need: [2]int{0, 14},
		p:    plantest.Spec{Heads: 1, Logical: 2, Lists: plantest.List(8, 6, 2, 3), Groups: []metadata.Group{{Window: 4, Layers: []int{0}}}},
		d:    plantest.Spec{Heads: 1, Logical: 2, Lists: plantest.List(10, 5, 8), Groups: []metadata.Group{{Window: 4, Layers: []int{0}}}},
		want: map[string]string{"P0→D0": "4>10:2 6>16:2"}},
	{name: "14 K and V joint, TP 2:1", n: 2, need: [2]int{0, 2},
		p:    plantest.Spec{TP: 2, Heads: 2, Logical: 2, Planes: 2, Lists: plantest.List(0, 1)},
		d:    plantest.Spec{Heads: 2, Logical: 2, Planes: 2, Lists: plantest.List(0, 2)},
		want: map[string]string{"P0→D0": "4>16:2 6>20:2", "P1→D0": "4>18:2 6>22:2"}},
	{name: "15 heads outside", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{Heads: 2, Logical: 2, Outside: true, Blocks: 4, Lists: plantest.List(0, 1, 2)},
		d:    plantest.Spec{Heads: 2, Logical: 2, Outside: true, Blocks: 8, Lists: plantest.List(0, 3, 4)},
		want: map[string]string{"P0→D0": "2>6:4 10>22:4"}},
	{name: "15 heads outside, TP 1:2", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{Heads: 2, Logical: 2, Outside: true, Blocks: 4, Lists: plantest.List(0, 1, 2)},
		d:    plantest.Spec{TP: 2, Heads: 2, Logical: 2, Outside: true, Blocks: 8, Lists: plantest.List(0, 3, 4)},
		want: map[string]string{"P0→D0": "2>6:4", "P0→D1": "10>6:4"}},
	{name: "16 NHD, TP 1:2", n: 2, need: [2]int{0, 2}, allow: Allow{TokensFirstSplit: true},
		p:    plantest.Spec{Heads: 2, Logical: 2, Order: metadata.TokensFirst, Lists: plantest.List(0, 1)},
		d:    plantest.Spec{TP: 2, Heads: 2, Logical: 2, Order: metadata.TokensFirst, Lists: plantest.List(0, 4)},
		want: map[string]string{"P0→D0": "4>8:1 6>9:1", "P0→D1": "5>8:1 7>9:1"}},
	{name: "17 padded stride", n: 8, need: [2]int{0, 8},
		p:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0, 1, 2)},
		d:    plantest.Spec{Heads: 1, Logical: 4, Stride: 10, Lists: plantest.List(0, 1, 2)},
		want: map[string]string{"P0→D0": "4>10:4 8>20:4"}},
	{name: "18 TP 1:2 and blocks 2:4", n: 4, need: [2]int{0, 4},
		p:    plantest.Spec{Heads: 2, Logical: 2, Lists: plantest.List(0, 0, 3)},
		d:    plantest.Spec{TP: 2, Heads: 2, Logical: 4, Lists: plantest.List(0, 1)},
		want: map[string]string{"P0→D0": "0>4:2 12>6:2", "P0→D1": "2>4:2 14>6:2"}},
	{name: "19 PP 2", n: 2, need: [2]int{0, 2}, // a region has 8 bytes: region r of a rank begins at 8·r
		p: plantest.Spec{PP: 2, Heads: 1, Logical: 2, Blocks: 4, Stages: [][]int{{0, 1, 2}, {3}}, Lists: plantest.List(0, 1)},
		d: plantest.Spec{Heads: 1, Logical: 2, Blocks: 4, Stages: [][]int{{0, 1, 2, 3}}, Lists: plantest.List(0, 2)},
		want: map[string]string{"P0/0→D0": "2>4:2 10>12:2 18>20:2",
			"P1/0→D0": "2>28:2"}},
	{name: "20 nothing to write", n: 6, need: [2]int{6, 6},
		p:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0, 2, 0)},
		d:    plantest.Spec{Heads: 1, Logical: 4, Lists: plantest.List(0)},
		want: map[string]string{}},
}

// D holds the beginning as a cached prefix and has a spare block at the end, so that its list is shorter than P's and
// neither their beginnings nor their ends belong together.
func TestTrapListsOfUnequalLengthCutAtTheEnd(t *testing.T) {
	s := plantest.Spec{Heads: 1, Logical: 4}.WithDefaults()
	pair, err := New(s.Records("p")[0], s.Records("d")[0], Allow{})
	if err != nil {
		t.Fatal(err)
	}
	from := []transfer.BlockList{{First: 0, Blocks: []int32{0, 1, 2, 5}}}
	to := []transfer.BlockList{{First: 8, Blocks: []int32{9, 4, 6}}}
	ranges, err := pair.Plan(nil, 14, [2]int{8, 14}, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plantest.RangesText(ranges), "20>16:4 8>36:4"); diff != "" {
		t.Errorf("ranges differ (-got +want):\n%s", diff)
	}
}
