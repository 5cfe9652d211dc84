// Package plantest makes records of ranks for tests of the block plan and of what uses it, and knows the address of each byte by a formula of
// its own.
package plantest

import (
	"fmt"
	"slices"
	"strings"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// Spec describes one side of a test in the words of docs/kvplane.md; zero values are the usual ones.
type Spec struct {
	TP, PP    int
	Heads     int
	Logical   int
	Physical  int
	Order     metadata.Order
	Planes    int
	HeadBytes int
	Outside   bool   // heads outside of the block stride
	Stride    uint64 // S, if more than the least
	Blocks    int    // kernel blocks of a region
	Stages    [][]int
	Groups    []metadata.Group
	Lists     []transfer.BlockList
	Base      uint64
}

// WithDefaults fills in what is zero.
func (s Spec) WithDefaults() Spec {
	s.TP, s.PP, s.Physical, s.Planes, s.HeadBytes = max(s.TP, 1), max(s.PP, 1), max(s.Physical, 1), max(s.Planes, 1), max(s.HeadBytes, 1)
	if s.Order == "" {
		s.Order = metadata.HeadsFirst
	}
	if s.Blocks == 0 {
		s.Blocks = 64
	}
	if s.Stages == nil {
		s.Stages = make([][]int, s.PP)
		s.Stages[0] = []int{0}
	}
	return s
}

// Local is how many heads a rank has.
func (s Spec) Local() int { return max(1, s.Heads/s.TP) }

// Records returns one record per rank. Regions of one rank lie behind each other from base on.
func (s Spec) Records(engine string) []metadata.Record {
	var out []metadata.Record
	h, b, c := uint64(s.Local()), uint64(s.Logical/s.Physical), uint64(s.HeadBytes)
	for pp := range s.PP {
		for tp := range s.TP {
			r := metadata.Record{
				Version: 1, Incarnation: metadata.Incarnation{Engine: engine, Generation: 1},
				Rank: metadata.Rank{PP: pp, TP: tp}, Size: metadata.Rank{DP: 1, PP: s.PP, TP: s.TP},
				Connector: "kvplane", Transport: "test", Agent: fmt.Sprintf("%s@1/0/%d/%d", engine, pp, tp),
				Layout: metadata.Layout{
					BlockTokens: s.Logical, Physical: s.Physical, Heads: s.Heads, HeadBytes: s.HeadBytes, Order: s.Order,
					DType: "u8", Groups: s.Groups,
				},
			}
			base := s.Base
			for _, layer := range s.Stages[pp] {
				region := metadata.Region{Layer: layer, Planes: s.Planes, Base: base, Blocks: s.Blocks}
				if s.Order == metadata.TokensFirst {
					region.TokenStride, region.HeadStride = h*c, c
				} else {
					region.TokenStride, region.HeadStride = c, b*c
				}
				region.PlaneStride = h * b * c
				region.BlockStride = max(s.Stride, uint64(s.Planes)*h*b*c)
				region.Length = uint64(s.Blocks) * region.BlockStride
				if s.Outside {
					region.BlockStride = b * c
					region.HeadStride = uint64(s.Blocks) * region.BlockStride
					region.PlaneStride = h * region.HeadStride
					region.Length = uint64(s.Planes) * region.PlaneStride
				}
				base += region.Length
				r.Layout.Regions = append(r.Layout.Regions, region)
			}
			out = append(out, r)
		}
	}
	return out
}

// List is the block list of one group.
func List(first int, ids ...int32) []transfer.BlockList {
	return []transfer.BlockList{{First: first, Blocks: ids}}
}

// RangesText lists ranges by their place on the consumer, for comparisons.
func RangesText(rs []transfer.Range) string {
	slices.SortFunc(rs, func(a, b transfer.Range) int { return int(a.Remote) - int(b.Remote) })
	var out []string
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%d>%d:%d", r.Local, r.Remote, r.Length))
	}
	return strings.Join(out, " ")
}

// Address is the formula of docs/kvplane.md, written a second time for naive models.
func Address(s Spec, r metadata.Record, region metadata.Region, l transfer.BlockList, plane, head, token int) uint64 {
	b := s.Logical / s.Physical
	id := int(l.Blocks[(token-l.First)/s.Logical])*s.Physical + token%s.Logical/b
	f := r.Rank.TP * s.Heads / s.TP
	return region.Base + uint64(id)*region.BlockStride + uint64(plane)*region.PlaneStride +
		uint64(head-f)*region.HeadStride + uint64(token%b)*region.TokenStride
}

// Each calls do for every byte address of a rank's tokens [from, to), with the content that belongs there.
func Each(s Spec, r metadata.Record, l transfer.BlockList, from, to int, do func(at uint64, content string)) {
	f := r.Rank.TP * s.Heads / s.TP
	for _, region := range r.Layout.Regions {
		for plane := range region.Planes {
			for head := f; head < f+s.Local(); head++ {
				for token := from; token < to; token++ {
					at := Address(s, r, region, l, plane, head, token)
					for c := range uint64(s.HeadBytes) {
						do(at+c, fmt.Sprintf("layer %d plane %d head %d token %d byte %d", region.Layer, plane, head, token, c))
					}
				}
			}
		}
	}
}

// Placed finds a place by counting through the grids.
func Placed(grids []transfer.StridedRegion, index int32) (address, length uint64) {
	for _, g := range grids {
		for block := range uint64(g.Blocks) {
			for unit := range uint64(g.Units) {
				if index == 0 {
					return g.Base + block*g.BlockStride + unit*g.UnitStride, g.Length
				}
				index--
			}
		}
	}
	return 0, 0
}
