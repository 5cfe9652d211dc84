package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/metadata"
)

func TestCounts(t *testing.T) {
	for _, tc := range []struct {
		p, d, heads, stages                int
		expected, writers, onlyNotify, own int
	}{
		{1, 1, 8, 1, 1, 1, 0, 1},
		{1, 2, 8, 1, 1, 1, 0, 2}, {1, 4, 8, 1, 1, 1, 0, 4}, {1, 8, 8, 1, 1, 1, 0, 8},
		{2, 1, 8, 1, 2, 2, 0, 1}, {4, 1, 8, 1, 4, 4, 0, 1}, {8, 1, 8, 1, 8, 8, 0, 1},
		{2, 4, 8, 1, 1, 1, 0, 2},
		{4, 2, 8, 1, 2, 2, 0, 1},
		{4, 2, 8, 2, 4, 4, 0, 1},
		{2, 4, 8, 4, 4, 4, 0, 2},
		{8, 1, 4, 1, 8, 4, 4, 1},
		{8, 2, 4, 1, 4, 2, 2, 1},
		{8, 4, 2, 1, 2, 1, 1, 1},
		{2, 8, 2, 1, 1, 1, 0, 4},
		{4, 1, 1, 1, 4, 1, 3, 1},
		{4, 2, 1, 2, 4, 2, 2, 1},
		{2, 8, 1, 1, 1, 1, 0, 4},
	} {
		t.Run(fmt.Sprintf("P %d D %d H %d stages %d", tc.p, tc.d, tc.heads, tc.stages), func(t *testing.T) {
			want := Counts{Expected: tc.expected, Writers: tc.writers, Owed: tc.own}
			if diff := cmp.Diff(Count(tc.p, tc.d, tc.heads, tc.stages, 1), want); diff != "" {
				t.Errorf("formula differs (-got +want):\n%s", diff)
			}
			var stages [][]int
			var all []int
			for i := range tc.stages {
				stages = append(stages, []int{2 * i, 2*i + 1})
				all = append(all, 2*i, 2*i+1)
			}
			p := plantest.Spec{TP: tc.p, PP: tc.stages, Heads: tc.heads, Logical: 2, Stages: stages}.WithDefaults().Records("p")
			d := plantest.Spec{TP: tc.d, Heads: tc.heads, Logical: 2, Stages: [][]int{all}}.WithDefaults().Records("d")
			for _, dr := range d {
				producers, err := Producers(p, dr, Allow{})
				if err != nil {
					t.Fatal(err)
				}
				got := Counts{Expected: len(producers), Owed: tc.own}
				for _, x := range producers {
					if x.Writes {
						got.Writers++
					}
				}
				if diff := cmp.Diff(got, want); diff != "" {
					t.Errorf("sets of D rank %s differ from the formula (-got +want):\n%s", dr.Rank, diff)
				}
				if only := got.Expected - got.Writers; only != tc.onlyNotify {
					t.Errorf("%d only notify; want %d", only, tc.onlyNotify)
				}
			}
			for _, pr := range p {
				consumers, err := Consumers(pr, d, Allow{})
				if err != nil {
					t.Fatal(err)
				}
				if len(consumers) != tc.own {
					t.Errorf("P rank %s owes %d consumers; want %d", pr.Rank, len(consumers), tc.own)
				}
			}
		})
	}
}

func TestProducersRefuseIncompleteRecords(t *testing.T) {
	p := plantest.Spec{TP: 2, Heads: 2, Logical: 2}.WithDefaults().Records("p")
	d := plantest.Spec{Heads: 2, Logical: 2}.WithDefaults().Records("d")[0]
	foreign := p[1]
	foreign.Generation = 9
	more := d
	more.Layout.Regions = append(more.Layout.Regions, metadata.Region{Layer: 1, Planes: 1, Blocks: 1, Length: 64, HeadStride: 2, TokenStride: 1})
	for _, tc := range []struct {
		name string
		p    []metadata.Record
		d    metadata.Record
	}{
		{"none", nil, d}, {"one missing", p[:1], d}, {"one twice", []metadata.Record{p[0], p[0]}, d},
		{"another generation", []metadata.Record{p[0], foreign}, d}, {"a layer of D that P lacks", p, more},
	} {
		if got, err := Producers(tc.p, tc.d, Allow{}); err == nil {
			t.Errorf("%s: got %d producers; want an error", tc.name, len(got))
		}
	}
}
