package kvplane

import (
	"fmt"
	"math/bits"

	"pdrouter/metadata"
)

// shape is a rank's layout in the quantities of docs/kvplane.md.
type shape struct {
	rank, size metadata.Rank
	logical    int // L: tokens of a logical block
	physical   int // ρ: kernel blocks of a logical block
	kernel     int // b = L/ρ: tokens of a kernel block
	model      int // H: heads of the model
	first      int // f: the first head held here
	heads      int // h: heads held here
	order      metadata.Order
	bytes      uint64 // c: bytes of one head of one token
	regions    []metadata.Region
	groups     []metadata.Group
}

// Bounds on the counts in a record, which comes from outside: products stay far from overflow.
const (
	maxExtent  = 1 << 20
	maxRegions = 1 << 12
	maxGroups  = 64
)

// newShape checks a record, whoever wrote it: afterwards every address computed from it lies in its regions.
func newShape(r metadata.Record) (shape, error) {
	l := r.Layout
	s := shape{
		rank: r.Rank, size: r.Size, logical: l.BlockTokens, physical: l.Physical, model: l.Heads,
		order: l.Order, bytes: uint64(l.HeadBytes), regions: l.Regions, groups: l.Groups,
	}
	bad := func(format string, args ...any) (shape, error) {
		return shape{}, fmt.Errorf("kvplane: record of %s rank %s: %s", r.ID(), r.Rank, fmt.Sprintf(format, args...))
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"block_tokens", l.BlockTokens}, {"physical_per_logical", l.Physical}, {"heads", l.Heads},
		{"head_bytes", l.HeadBytes}, {"size.pp", r.Size.PP}, {"size.tp", r.Size.TP},
	} {
		if v.n < 1 || v.n > maxExtent {
			return bad("%s is %d; want 1 to %d", v.name, v.n, maxExtent)
		}
	}
	switch {
	case r.Rank.TP < 0 || r.Rank.TP >= r.Size.TP || r.Rank.PP < 0 || r.Rank.PP >= r.Size.PP:
		return bad("rank is outside of size %s", r.Size)
	case l.BlockTokens%l.Physical != 0:
		return bad("block_tokens %d is no multiple of physical_per_logical %d", l.BlockTokens, l.Physical)
	case l.Order != metadata.HeadsFirst && l.Order != metadata.TokensFirst:
		return bad("order is %q; want hnd or nhd", l.Order)
	case l.Replicated && l.Heads != 1:
		return bad("replicated with %d heads; want 1", l.Heads)
	}
	if len(l.Regions) > maxRegions || len(l.Groups) > maxGroups {
		return bad("%d regions in %d groups; want at most %d in %d", len(l.Regions), len(l.Groups), maxRegions, maxGroups)
	}
	s.kernel = l.BlockTokens / l.Physical
	switch t := r.Size.TP; {
	case t <= l.Heads && l.Heads%t == 0:
		s.first, s.heads = r.Rank.TP*l.Heads/t, l.Heads/t
	case t > l.Heads && t%l.Heads == 0:
		s.first, s.heads = r.Rank.TP*l.Heads/t, 1
	default:
		return bad("heads %d and tensor-parallel size %d: neither divides the other", l.Heads, t)
	}
	if len(s.groups) == 0 {
		g := metadata.Group{}
		for _, region := range l.Regions {
			g.Layers = append(g.Layers, region.Layer)
		}
		s.groups = []metadata.Group{g}
	}
	for i, g := range s.groups {
		if g.Window < 0 || g.Window > 1<<40 {
			return bad("window of group %d is %d", i, g.Window)
		}
	}
	for _, region := range l.Regions {
		if region.Planes < 1 || region.Planes > maxExtent || region.Blocks < 1 || region.Blocks > 1<<31-1 {
			return bad("layer %d: %d planes of %d blocks", region.Layer, region.Planes, region.Blocks)
		}
		if region.Base+region.Length < region.Base || s.end(region) > region.Length {
			return bad("layer %d: blocks reach beyond the region's %d bytes", region.Layer, region.Length)
		}
		if s.group(region.Layer) < 0 {
			return bad("layer %d is in no group", region.Layer)
		}
	}
	return s, nil
}

// end returns the offset behind the region's last byte, or the largest number if it passes that.
func (s *shape) end(r metadata.Region) uint64 {
	sum := s.bytes
	for _, p := range [][2]uint64{
		{uint64(r.Blocks - 1), r.BlockStride}, {uint64(r.Planes - 1), r.PlaneStride},
		{uint64(s.heads - 1), r.HeadStride}, {uint64(s.kernel - 1), r.TokenStride},
	} {
		high, low := bits.Mul64(p[0], p[1])
		next, carry := bits.Add64(sum, low, 0)
		if high|carry != 0 {
			return ^uint64(0)
		}
		sum = next
	}
	return sum
}

// group returns the index of the group that holds a layer, -1 if none does.
func (s *shape) group(layer int) int {
	for i, g := range s.groups {
		for _, l := range g.Layers {
			if l == layer {
				return i
			}
		}
	}
	return -1
}

// layer returns the regions of one layer in their order: one if K and V lie together, else two.
func (s *shape) layer(layer int) []metadata.Region {
	var out []metadata.Region
	for _, r := range s.regions {
		if r.Layer == layer {
			out = append(out, r)
		}
	}
	return out
}

// unit returns the offset in a region of the tokens from t on, which begin a unit.
func (s *shape) unit(l BlockList, t int, r *metadata.Region) uint64 {
	id := int(l.Blocks[t/s.logical-l.First/s.logical])
	o := t % s.logical
	return uint64(id*s.physical+o/s.kernel)*r.BlockStride + uint64(o%s.kernel)*r.TokenStride
}

// reach returns the token behind the list's last block.
func (s *shape) reach(l BlockList) int { return (l.First/s.logical + len(l.Blocks)) * s.logical }

// check refuses a list whose numbers do not fit the layout of a group.
func (s *shape) check(l BlockList, group int) error {
	if l.First < 0 || l.First%s.kernel != 0 || l.First > 1<<40 {
		return fmt.Errorf("first token %d; want a multiple of %d", l.First, s.kernel)
	}
	blocks := 1<<31 - 1
	for _, r := range s.regions {
		if s.group(r.Layer) == group {
			blocks = min(blocks, r.Blocks)
		}
	}
	for _, id := range l.Blocks {
		if id < 0 || int(id) >= blocks/s.physical {
			return fmt.Errorf("block %d; want 0 to %d", id, blocks/s.physical-1)
		}
	}
	return nil
}
