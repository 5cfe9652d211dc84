package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// layoutWorld is a drawn pair of engines and one transfer between them, in the words of docs/kvplane.md.
type layoutWorld struct {
	groups []metadata.Group // Heads and HeadBytes are set
	planes []int            // by group
	apart  []bool           // by group: K and V lie in two regions
	of     []int            // group of each layer
	n      int
	need   [2]int
	p, d   layoutSide
	seen   []string // classes that the draw belongs to
}

// layoutSide is one engine of it.
type layoutSide struct {
	name         string
	tp           int
	stages       [][]int
	logical, rho int
	order        metadata.Order
	outside      bool // heads outside of the block stride
	pooled       bool // all groups and layers in one tensor
	pad          int
	blocks       int // logical
	lists        []transfer.BlockList
}

func (s *layoutSide) kernel() int { return s.logical / s.rho }

var tensorRatios = [][2]int{{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1}, {4, 1}, {8, 1}, {2, 4}, {4, 2}}

func drawWorld(seed uint64) *layoutWorld {
	rng := rand.New(rand.NewPCG(seed, 2))
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	some := func(in int) bool { return rng.IntN(in) == 0 }
	w := &layoutWorld{}
	ratio := tensorRatios[seed%uint64(len(tensorRatios))]
	w.draws("TP %d:%d", ratio[0], ratio[1])

	order := metadata.HeadsFirst
	if some(3) {
		order = metadata.TokensFirst
	}
	layers := 4 + rng.IntN(3)
	for g := range one(1, 1, 2, 3) {
		x := metadata.Group{Heads: one(1, 2, 4, 8), HeadBytes: 1 + rng.IntN(3)}
		planes := 2
		switch {
		case g == 1:
			x.Window = 1 + rng.IntN(20)
		case g == 2 || g == 0 && some(5):
			x.Heads, x.HeadBytes, planes = 1, 5, 1
			w.draws("MLA")
			if g == 2 {
				w.draws("MLA beside full attention")
			}
		}
		w.groups, w.planes, w.apart = append(w.groups, x), append(w.planes, planes), append(w.apart, some(3))
		if x.Heads < ratio[0] {
			w.draws("P's TP above the heads")
		}
		if x.Heads < ratio[1] {
			w.draws("D's TP above the heads")
		}
	}
	w.draws("%d groups", len(w.groups))
	for l := range layers {
		w.of = append(w.of, l%len(w.groups))
		w.groups[l%len(w.groups)].Layers = append(w.groups[l%len(w.groups)].Layers, l)
	}
	w.p, w.d = layoutSide{name: "p", tp: ratio[0], order: order}, layoutSide{name: "d", tp: ratio[1], order: order}
	for _, s := range []*layoutSide{&w.p, &w.d} {
		pp := one(1, 1, 2, 4)
		cuts := append(slices.Sorted(slices.Values(rng.Perm(layers - 1)[:pp-1])), layers-1)
		at, least, most := 0, layers, 0
		for _, c := range cuts {
			var stage []int
			for ; at <= c; at++ {
				stage = append(stage, at)
			}
			s.stages = append(s.stages, stage)
			least, most = min(least, len(stage)), max(most, len(stage))
		}
		w.draws("%s has %d stages", s.name, pp)
		if least != most {
			w.draws("uneven stages")
		}
		s.logical, s.rho = one(2, 4, 8), one(1, 1, 2)
		if s.outside = order == metadata.HeadsFirst && some(4); s.outside {
			w.draws("heads outside the block stride")
		} else {
			w.draws("heads inside the block stride")
			if s.pooled = some(4); s.pooled && len(w.groups) > 1 {
				w.draws("groups pooled in one tensor")
			}
		}
		if some(3) && !s.outside {
			s.pad = 1 + rng.IntN(7)
			w.draws("padded stride")
		}
	}
	w.draws("order %s", order)
	switch bp, bd := w.p.kernel(), w.d.kernel(); {
	case bp < bd:
		w.draws("D's kernel blocks larger")
	case bp > bd:
		w.draws("P's kernel blocks larger")
	}
	if w.p.rho != w.d.rho {
		w.draws("physical per logical differs")
	}
	w.drawTransfer(rng)
	return w
}

// drawTransfer draws tokens and block lists.
func (w *layoutWorld) drawTransfer(rng *rand.Rand) {
	tokens := 1 + rng.IntN(40)
	if rng.IntN(6) == 0 {
		tokens = 1 + rng.IntN(2)
	}
	switch rng.IntN(4) {
	case 0:
		w.need = [2]int{tokens, tokens}
		w.draws("D holds all of the prefix")
	case 1:
		w.need = [2]int{rng.IntN(tokens), tokens}
	default:
		w.need = [2]int{0, tokens}
	}
	if w.need[0] > 0 && w.need[0] < tokens {
		w.draws("D holds a part of the prefix")
	} else if w.need[0] == 0 {
		w.draws("D holds none of the prefix")
	}
	w.n = tokens
	if rng.IntN(4) == 0 {
		w.n += rng.IntN(5)
	}
	if tokens%w.d.kernel() != 0 {
		w.draws("last block partly filled")
	}
	for _, s := range []*layoutSide{&w.p, &w.d} {
		for _, g := range w.groups {
			limit := w.need[0]
			if begin := (tokens - g.Window) / w.d.kernel() * w.d.kernel(); g.Window > 0 && tokens > g.Window {
				limit = max(limit, begin)
				w.draws("window shorter than the request")
			}
			l := transfer.BlockList{First: limit / s.kernel() * s.kernel()}
			if rng.IntN(3) == 0 {
				l.First = rng.IntN(limit/s.kernel()+1) * s.kernel()
			}
			if s.name == "p" && g.Window == 0 && rng.IntN(3) > 0 {
				l.First = 0
			}
			if l.First%s.logical != 0 {
				w.draws("a list begins inside of a logical block")
			}
			if g.Window > 0 && l.First > 0 {
				w.draws("a window's list is a tail")
			}
			count := (tokens+s.logical-1)/s.logical - l.First/s.logical
			if rng.IntN(2) == 0 {
				count += rng.IntN(3)
			}
			if w.need[0] == w.need[1] && rng.IntN(2) == 0 {
				count = 0
			}
			switch count {
			case 0:
				w.draws("zero blocks")
			case 1:
				w.draws("one block")
			}
			l.Blocks = make([]int32, count)
			s.blocks += count + 2
			s.lists = append(s.lists, l)
		}
		// Groups draw their blocks from one pool: where they share a tensor they must not share a block.
		ids := rng.Perm(s.blocks)
		if rng.IntN(3) == 0 {
			slices.Sort(ids)
			w.draws("blocks in a row")
		}
		for g := range s.lists {
			for j := range s.lists[g].Blocks {
				s.lists[g].Blocks[j], ids = int32(ids[0]), ids[1:]
			}
			ids = ids[2:]
		}
	}
	for g := range w.groups {
		if len(w.p.lists[g].Blocks) != len(w.d.lists[g].Blocks) {
			w.draws("lists of unequal length")
		}
	}
}

func (w *layoutWorld) draws(format string, args ...any) {
	if class := fmt.Sprintf(format, args...); !slices.Contains(w.seen, class) {
		w.seen = append(w.seen, class)
	}
}

const worldBase = 1 << 12

// records returns one record per rank and the size of a rank's memory, which begins at worldBase.
func (w *layoutWorld) records(s *layoutSide) ([]metadata.Record, uint64) {
	var out []metadata.Record
	size := uint64(0)
	b, kernels := uint64(s.kernel()), uint64(s.blocks*s.rho)
	inner := func(g int) (h, c, bytes uint64) { // of one kernel block of one region
		h, c = uint64(max(1, w.groups[g].Heads/s.tp)), uint64(w.groups[g].HeadBytes)
		bytes = h * b * c
		if !w.apart[g] {
			bytes *= uint64(w.planes[g])
		}
		return h, c, bytes
	}
	for stage := range s.stages {
		for tp := range s.tp {
			r := metadata.Record{
				Incarnation: metadata.Incarnation{Engine: s.name, Generation: 1},
				Rank:        metadata.Rank{PP: stage, TP: tp}, Size: metadata.Rank{DP: 1, PP: len(s.stages), TP: s.tp},
				Connector: "kvplane", Transport: "test", Agent: fmt.Sprintf("%s@1/0/%d/%d", s.name, stage, tp),
				Layout: metadata.Layout{
					BlockTokens: s.logical, Physical: s.rho, Order: s.order, DType: "u8", Groups: w.groups,
					Heads: w.groups[0].Heads, HeadBytes: w.groups[0].HeadBytes,
				},
			}
			if len(w.groups) == 1 {
				r.Layout.Groups = nil // the layout's own numbers must do
			}
			largest, most := uint64(0), uint64(0) // of the pool: a region's bytes of a block, regions of one group
			for g := range w.groups {
				_, _, bytes := inner(g)
				largest = max(largest, bytes+uint64(s.pad))
				count := uint64(0)
				for _, layer := range s.stages[stage] {
					if w.of[layer] == g {
						count++
						if w.apart[g] {
							count += uint64(w.planes[g]) - 1
						}
					}
				}
				most = max(most, count)
			}
			base, place := uint64(worldBase), make([]uint64, len(w.groups))
			for _, layer := range s.stages[stage] {
				g := w.of[layer]
				regions, planes := 1, w.planes[g]
				if w.apart[g] {
					regions, planes = planes, 1
				}
				for range regions {
					h, c, bytes := inner(g)
					x := metadata.Region{Layer: layer, Planes: planes, Base: base, Blocks: int(kernels), PlaneStride: h * b * c,
						BlockStride: bytes + uint64(s.pad), TokenStride: c, HeadStride: b * c}
					if s.order == metadata.TokensFirst {
						x.TokenStride, x.HeadStride = h*c, c
					}
					switch {
					case s.pooled:
						x.BlockStride = most * largest
						x.Base = worldBase + place[g]*largest
						place[g]++
						x.Length = worldBase + kernels*x.BlockStride - x.Base
						base = worldBase + kernels*x.BlockStride
					case s.outside:
						x.BlockStride = b * c
						x.HeadStride = kernels * x.BlockStride
						x.PlaneStride = h * x.HeadStride
						x.Length = uint64(planes) * x.PlaneStride
						base += x.Length
					default:
						x.Length = kernels * x.BlockStride
						base += x.Length
					}
					r.Layout.Regions = append(r.Layout.Regions, x)
				}
			}
			size = max(size, base-worldBase)
			out = append(out, r)
		}
	}
	return out, size
}

// each calls do with the place of every byte of a rank's tokens [from, to) of one group, and what belongs there:
// never 0, and the same on both sides.
func (w *layoutWorld) each(s *layoutSide, r metadata.Record, g, from, to int, do func(at, content uint64)) {
	x, b := w.groups[g], s.kernel()
	first := r.Rank.TP * x.Heads / s.tp
	nth := map[int]int{}
	for _, region := range r.Layout.Regions {
		if w.of[region.Layer] != g {
			continue
		}
		part := nth[region.Layer]
		nth[region.Layer]++
		for plane := range region.Planes {
			for head := first; head < first+max(1, x.Heads/s.tp); head++ {
				for t := from; t < to; t++ {
					l := s.lists[g]
					id := int(l.Blocks[t/s.logical-l.First/s.logical])*s.rho + t%s.logical/b
					at := region.Base - worldBase + uint64(id)*region.BlockStride + uint64(plane)*region.PlaneStride +
						uint64(head-first)*region.HeadStride + uint64(t%b)*region.TokenStride
					for c := range x.HeadBytes {
						content := uint64(1 + region.Layer)
						for _, v := range []int{part + plane, head, t, c} {
							content = content<<10 | uint64(v)
						}
						do(at+uint64(c), content)
					}
				}
			}
		}
	}
}
