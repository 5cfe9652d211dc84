package plan

import (
	"fmt"
	"testing"

	"pdrouter/metadata"
)

// TestMapsIsThePlan: which ranks may read each other's records is which ranks have to do with each other in the plan.
func TestMapsIsThePlan(t *testing.T) {
	const layers = 6
	rank := func(role metadata.Role, of, at metadata.Rank) metadata.Record {
		r := metadata.Record{Role: role, Rank: at, Size: of, Connector: "kvplane", Transport: "tcp",
			Layout: metadata.Layout{BlockTokens: 4, Physical: 1, Heads: 4, HeadBytes: 8, Order: metadata.HeadsFirst, DType: "u64"}}
		local := uint64(max(1, 4/of.TP))
		for l := at.PP * layers / of.PP; l < (at.PP+1)*layers/of.PP; l++ {
			r.Layout.Regions = append(r.Layout.Regions, metadata.Region{Layer: l, Planes: 2, Base: 1 << 40, Length: 16 * 2 * local * 32, Blocks: 16,
				BlockStride: 2 * local * 32, PlaneStride: local * 32, HeadStride: 32, TokenStride: 8})
		}
		return r
	}
	each := func(of metadata.Rank, f func(at metadata.Rank)) {
		for pp := range of.PP {
			for tp := range of.TP {
				f(metadata.Rank{PP: pp, TP: tp})
			}
		}
	}
	pairs := 0
	for _, pp := range []int{1, 2, 3} {
		for _, dd := range []int{1, 2, 3} {
			for _, pt := range []int{1, 2, 4, 8} {
				for _, dt := range []int{1, 2, 4, 8} {
					ps, ds := metadata.Rank{DP: 1, PP: pp, TP: pt}, metadata.Rank{DP: 1, PP: dd, TP: dt}
					each(ps, func(at metadata.Rank) {
						p := rank(metadata.Prefill, ps, at)
						each(ds, func(to metadata.Rank) {
							d := rank(metadata.Decode, ds, to)
							plan, err := New(p, d, Allow{})
							if err != nil {
								t.Fatal(err)
							}
							pairs++
							name := fmt.Sprintf("rank %v of %v, rank %v of %v", at, ps, to, ds)
							if got, want := metadata.Maps(p, d), plan.related(); got != want {
								t.Errorf("%s: got %v; want %v", name, got, want)
							}
							if metadata.Maps(p, d) != metadata.Maps(d, p) {
								t.Errorf("%s: one way only", name)
							}
						})
					})
				}
			}
		}
	}
	if pairs < 1000 {
		t.Errorf("%d pairs of ranks", pairs)
	}
}
