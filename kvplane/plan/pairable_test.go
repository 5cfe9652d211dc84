package plan

import (
	"errors"
	"testing"

	"pdrouter/metadata"
)

// TestPairableIsPlannable: two engines that the gateway pairs can be planned for, and two that it keeps apart cannot,
// whatever keeps them apart.
func TestPairableIsPlannable(t *testing.T) {
	engine := func(role metadata.Role, tp int, change func(*metadata.Record)) []metadata.Record {
		recs := make([]metadata.Record, tp)
		for i := range recs {
			r := metadata.Record{Role: role, Rank: metadata.Rank{TP: i}, Size: metadata.Rank{DP: 1, PP: 1, TP: tp}, Connector: "kvplane",
				ConnectorVersion: "1", Compatibility: "digest", Transport: "tcp",
				Layout: metadata.Layout{BlockTokens: 4, Physical: 1, Heads: 4, HeadBytes: 8, Order: metadata.HeadsFirst, DType: "u64"}}
			r.Incarnation = metadata.Incarnation{Engine: string(role), Generation: 1}
			r.Agent = r.ID() + "/" + r.Rank.String()
			for layer := range 2 { // wide enough for every change below
				r.Layout.Regions = append(r.Layout.Regions, metadata.Region{Layer: layer, Planes: 2, Base: 1 << 40, Length: 1 << 20, Blocks: 16,
					BlockStride: 1 << 14, PlaneStride: 1 << 13, HeadStride: 1 << 9, TokenStride: 1 << 6})
			}
			if change != nil {
				change(&r)
			}
			recs[i] = r
		}
		return recs
	}
	layout := func(f func(*metadata.Layout)) func(*metadata.Record) {
		return func(r *metadata.Record) { f(&r.Layout) }
	}
	const fewer = "a layer is missing"
	changes := map[string]func(*metadata.Record){
		"nothing":           nil,
		"compatibility":     func(r *metadata.Record) { r.Compatibility = "other" },
		"connector":         func(r *metadata.Record) { r.Connector = "other" },
		"version":           func(r *metadata.Record) { r.ConnectorVersion = "2" },
		"version not told":  func(r *metadata.Record) { r.ConnectorVersion = "" },
		"transport":         func(r *metadata.Record) { r.Transport = "nixl" },
		"heads":             layout(func(l *metadata.Layout) { l.Heads = 8 }),
		"heads of no rank":  layout(func(l *metadata.Layout) { l.Heads = 3 }),
		"head bytes":        layout(func(l *metadata.Layout) { l.HeadBytes = 16 }),
		"element type":      layout(func(l *metadata.Layout) { l.DType = "u32" }),
		"replicated":        layout(func(l *metadata.Layout) { l.Replicated, l.Heads = true, 1 }),
		"memory type":       layout(func(l *metadata.Layout) { l.MemoryType = "vram" }),
		"data-parallel":     func(r *metadata.Record) { r.Size.DP = 2 },
		"order":             layout(func(l *metadata.Layout) { l.Order = metadata.TokensFirst }),
		"larger blocks":     layout(func(l *metadata.Layout) { l.BlockTokens = 8 }),
		"uneven blocks":     layout(func(l *metadata.Layout) { l.BlockTokens = 6 }),
		"kernel blocks":     layout(func(l *metadata.Layout) { l.BlockTokens, l.Physical = 8, 2 }),
		"uneven kernels":    layout(func(l *metadata.Layout) { l.BlockTokens, l.Physical = 12, 2 }),
		"blocks of a token": layout(func(l *metadata.Layout) { l.BlockTokens = 1 }),
		fewer:               layout(func(l *metadata.Layout) { l.Regions = l.Regions[:1] }),
		"planes": layout(func(l *metadata.Layout) {
			for i := range l.Regions {
				l.Regions[i].Planes = 1
			}
		}),
	}
	both := [2]int{}
	for _, pt := range []int{1, 2, 3, 4, 8} {
		for _, dt := range []int{1, 2, 3, 4, 8} {
			for px, pc := range changes {
				for dx, dc := range changes {
					p, d := engine(metadata.Prefill, pt, pc), engine(metadata.Decode, dt, dc)
					apart := metadata.Pairable(p, d)
					var refused error
					for _, to := range d {
						if _, err := Producers(p, to, Allow{}); err != nil {
							refused = err
						}
					}
					var why *metadata.Unpairable
					if errors.As(apart, &why) && why.Reason == metadata.OtherLayers && dx == fewer && refused == nil {
						continue // a consumer plans for the layers that it has: it cannot know that its engine lacks one
					}
					if (apart == nil) != (refused == nil) {
						t.Errorf("%d ranks with %s, %d ranks with %s: the pairing says %v, the plan says %v", pt, px, dt, dx, apart, refused)
						continue
					}
					if apart == nil {
						both[0]++
					} else {
						both[1]++
					}
				}
			}
		}
	}
	t.Logf("%d of %d pairs of engines fit", both[0], both[0]+both[1])
	if both[0] < 100 || both[1] < 1000 {
		t.Errorf("%d pairs fit and %d do not: too few of one of them", both[0], both[1])
	}
}
