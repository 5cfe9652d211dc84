package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// rankLayout is a rank's layout in the quantities of docs/kvplane.md.
type rankLayout struct {
	rank, size metadata.Rank
	logical    int // L: tokens of a logical block
	physical   int // ρ: kernel blocks of a logical block
	kernel     int // b = L/ρ: tokens of a kernel block
	order      metadata.Order
	regions    []metadata.Region
	groups     []group
	groupOf    map[int]int // by layer
}

// group is what one KV-cache group of a rank is made of.
type group struct {
	window int
	model  int    // H: heads of the model
	first  int    // f: the first head held here
	heads  int    // h: heads held here
	bytes  uint64 // c: bytes of one head of one token
	blocks int    // logical blocks, the least of its regions
}

// Bounds on the counts in a record, which comes from outside: products stay far from overflow.
const (
	MaxExtent  = 1 << 20
	maxRegions = metadata.MaxRegions
	maxGroups  = metadata.MaxGroups
)

// Check returns an error for a record that nothing can be planned with.
func Check(r metadata.Record) error {
	_, err := newRankLayout(r)
	return err
}

// Blocks returns how many logical blocks a rank has in each group.
func Blocks(r metadata.Record) ([]int, error) {
	s, err := newRankLayout(r)
	if err != nil {
		return nil, err
	}
	out := make([]int, len(s.groups))
	for i, g := range s.groups {
		out[i] = g.blocks
	}
	return out, nil
}

// newRankLayout checks a record: afterwards every address computed from it lies in its regions.
func newRankLayout(r metadata.Record) (rankLayout, error) {
	l := r.Layout
	s := rankLayout{
		rank: r.Rank, size: r.Size, logical: l.BlockTokens, physical: l.Physical, order: l.Order, regions: l.Regions,
		groupOf: make(map[int]int, len(l.Regions)),
	}
	bad := func(format string, args ...any) (rankLayout, error) {
		return rankLayout{}, fmt.Errorf("kvplane: record of %s rank %s: %s", r.ID(), r.Rank, fmt.Sprintf(format, args...))
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"block_tokens", l.BlockTokens}, {"physical_per_logical", l.Physical}, {"heads", l.Heads},
		{"head_bytes", l.HeadBytes}, {"size.pp", r.Size.PP}, {"size.tp", r.Size.TP},
	} {
		if v.n < 1 || v.n > MaxExtent {
			return bad("%s is %d; want 1 to %d", v.name, v.n, MaxExtent)
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
	case len(l.Regions) > maxRegions || len(l.Groups) > maxGroups:
		return bad("%d regions in %d groups; want at most %d in %d", len(l.Regions), len(l.Groups), maxRegions, maxGroups)
	}
	s.kernel = l.BlockTokens / l.Physical
	for i, g := range groupsOf(l) {
		made, err := newGroup(g, l, r.Rank.TP, r.Size.TP)
		if e := (*unevenError)(nil); errors.As(err, &e) {
			e.group = i
		}
		if err != nil {
			return rankLayout{}, fmt.Errorf("kvplane: record of %s rank %s: group %d: %w", r.ID(), r.Rank, i, err)
		}
		s.groups = append(s.groups, made)
		for _, layer := range g.Layers {
			if other, ok := s.groupOf[layer]; ok && other != i {
				return bad("layer %d is in groups %d and %d", layer, other, i)
			}
			s.groupOf[layer] = i
		}
	}
	for _, region := range l.Regions {
		if region.Planes < 1 || region.Planes > MaxExtent || region.Blocks < 1 || region.Blocks > 1<<31-1 {
			return bad("layer %d: %d planes of %d blocks", region.Layer, region.Planes, region.Blocks)
		}
		i, ok := s.groupOf[region.Layer]
		if !ok {
			return bad("layer %d is in no group", region.Layer)
		}
		g := &s.groups[i]
		if region.Base+region.Length < region.Base || s.end(g, region) > region.Length {
			return bad("layer %d: blocks reach beyond the region's %d bytes", region.Layer, region.Length)
		}
		g.blocks = min(g.blocks, region.Blocks/s.physical)
	}
	return s, nil
}

// groupsOf returns a layout's groups: without any, all its layers are one of full attention.
func groupsOf(l metadata.Layout) []metadata.Group {
	if len(l.Groups) > 0 {
		return l.Groups
	}
	g := metadata.Group{}
	for _, region := range l.Regions {
		if n := len(g.Layers); n == 0 || g.Layers[n-1] != region.Layer {
			g.Layers = append(g.Layers, region.Layer)
		}
	}
	return []metadata.Group{g}
}

// newGroup splits a group's heads over the tensor-parallel ranks. Its blocks are counted with the regions.
func newGroup(g metadata.Group, l metadata.Layout, rank, size int) (group, error) {
	heads, width := cmp.Or(g.Heads, l.Heads), cmp.Or(g.HeadBytes, l.HeadBytes)
	made := group{window: g.Window, model: heads, bytes: uint64(width), first: rank * heads / size, heads: max(1, heads/size), blocks: 1<<31 - 1}
	switch {
	case g.Window < 0 || g.Window > transfer.MaxTokens:
		return group{}, fmt.Errorf("window is %d", g.Window)
	case heads < 1 || heads > MaxExtent || width < 1 || width > MaxExtent:
		return group{}, fmt.Errorf("%d heads of %d bytes; want 1 to %d of each", heads, width, MaxExtent)
	case heads%size != 0 && size%heads != 0:
		return group{}, &unevenError{heads: heads, ranks: size}
	}
	return made, nil
}

// unevenError says that heads cannot be shared evenly among ranks, nor ranks among heads.
type unevenError struct{ group, heads, ranks int }

func (e *unevenError) Error() string {
	return fmt.Sprintf("heads %d and tensor-parallel size %d: neither divides the other", e.heads, e.ranks)
}

// uneven makes a refusal of a record whose heads its ranks cannot share: it is sound, but nothing can be planned for it.
func uneven(err error, p, d metadata.Record) error {
	var e *unevenError
	if !errors.As(err, &e) {
		return err
	}
	side := func(r metadata.Record) string { return fmt.Sprintf("%d heads on %d ranks", r.Layout.Heads, r.Size.TP) }
	return unplannable(fmt.Sprintf("group %d: %v", e.group, e), side(p), side(d))
}

// end returns the offset after the region's last byte, or the largest number if it passes that.
func (s *rankLayout) end(g *group, r metadata.Region) uint64 {
	sum := g.bytes
	for _, p := range [][2]uint64{
		{uint64(r.Blocks - 1), r.BlockStride}, {uint64(r.Planes - 1), r.PlaneStride},
		{uint64(g.heads - 1), r.HeadStride}, {uint64(s.kernel - 1), r.TokenStride},
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

// layers returns the regions of each layer in their order: one if K and V lie together, else two.
func (s *rankLayout) layers() map[int][]metadata.Region {
	out := make(map[int][]metadata.Region, len(s.regions))
	for _, r := range s.regions {
		out[r.Layer] = append(out[r.Layer], r)
	}
	return out
}

// locate returns the kernel block of token t and t's index in it.
func (s *rankLayout) locate(l transfer.BlockList, t int) (block, token int) {
	id := int(l.Blocks[t/s.logical-l.First/s.logical])
	o := t % s.logical
	return id*s.physical + o/s.kernel, o % s.kernel
}

// offset returns the offset in a region of the common block that begins with token t.
func (s *rankLayout) offset(l transfer.BlockList, t int, r *metadata.Region) uint64 {
	block, token := s.locate(l, t)
	return uint64(block)*r.BlockStride + uint64(token)*r.TokenStride
}

// reach returns the token after the list's last block.
func (s *rankLayout) reach(l transfer.BlockList) int {
	return (l.First/s.logical + len(l.Blocks)) * s.logical
}

// check refuses a list whose numbers do not fit the layout of a group.
func (s *rankLayout) check(l transfer.BlockList, group int) error {
	if l.First < 0 || l.First%s.kernel != 0 || l.First > transfer.MaxTokens {
		return fmt.Errorf("first token %d; want a multiple of %d", l.First, s.kernel)
	}
	blocks := s.groups[group].blocks
	for _, id := range l.Blocks {
		if id < 0 || int(id) >= blocks {
			return fmt.Errorf("block %d; want 0 to %d", id, blocks-1)
		}
	}
	return nil
}
