package plan

import (
	"cmp"
	"fmt"
	"slices"

	"pdrouter/metadata"
)

// Pair is the block plan between one producer rank and one consumer rank: what does not change from transfer to
// transfer. It holds scratch memory and is not safe for concurrent use.
type Pair struct {
	p, d        rankLayout
	commonBlock int // u: tokens of the smaller kernel block
	groups      [][]regionPair
	segmentsCut int // copies made so far while the region pairs were cut
	descriptors descriptorTable
	spans       [][2]int   // scratch: per group, the tokens that are copied
	fromOffsets []uint64   // scratch: per common block, offset on P
	toOffsets   []uint64   // scratch: per common block, offset on D
	fromIndices []int32    // scratch: per common block, descriptor on P
	toIndices   []int32    // scratch: per common block, descriptor on D
	runs        []blockRun // scratch
}

// regionPair is one region of P and the region of D that holds the same layer.
type regionPair struct {
	p, d        metadata.Region
	segments    []segment
	localFirst  int32 // number of its first descriptor on P
	remoteFirst int32 // and on D
}

// segment is a contiguous copy inside one common block, relative to where the common block begins in either region.
type segment struct{ p, d, length uint64 }

// Allow names what is refused unless a deployment asks for it.
type Allow struct {
	// TokensFirstSplit lets ranks with different numbers of heads exchange tokens-first blocks, which takes one range
	// per token and head.
	TokensFirstSplit bool
}

// New plans between two ranks. The error is a *Refusal if the records are sound but do not fit each other.
func New(p, d metadata.Record, allow Allow) (*Pair, error) {
	ps, err := newRankLayout(p)
	if err != nil {
		return nil, uneven(err, p, d)
	}
	ds, err := newRankLayout(d)
	if err != nil {
		return nil, uneven(err, p, d)
	}
	if err := fits(p, d); err != nil {
		return nil, err
	}
	q := &Pair{p: ps, d: ds, commonBlock: min(ps.kernel, ds.kernel), groups: make([][]regionPair, len(ps.groups))}
	if err := q.refuse(allow); err != nil {
		return nil, err
	}
	if err := q.pairRegions(); err != nil {
		return nil, err
	}
	return q, nil
}

// fits refuses two records that could not be brought together whatever their ranks.
func fits(p, d metadata.Record) error {
	if m := metadata.Fits(p, d); m != nil {
		return unplannable(m.What, m.P, m.D)
	}
	return nil
}

// refuse compares what the ranks are made of, group by group.
func (q *Pair) refuse(allow Allow) error {
	big := max(q.p.kernel, q.d.kernel)
	if big%q.commonBlock != 0 {
		return unplannable("kernel block tokens", q.p.kernel, q.d.kernel)
	}
	if len(q.p.groups) != len(q.d.groups) {
		return unplannable("groups", len(q.p.groups), len(q.d.groups))
	}
	for i := range q.p.groups {
		p, d := &q.p.groups[i], &q.d.groups[i]
		of := func(what string) string { return fmt.Sprintf("%s of group %d", what, i) }
		switch {
		case p.window != d.window:
			return unplannable(of("window"), p.window, d.window)
		case p.model != d.model:
			return unplannable(of("heads"), p.model, d.model)
		case p.bytes != d.bytes:
			return unplannable(of("head bytes"), p.bytes, d.bytes)
		case big == 1: // one token: both orders are the same
		case q.p.order != q.d.order && (p.heads > 1 || d.heads > 1):
			return unplannable(of("order"), q.p.order, q.d.order)
		case q.p.order == metadata.TokensFirst && p.heads != d.heads && !allow.TokensFirstSplit:
			return unplannable(of("heads per rank, tokens first,"), p.heads, d.heads)
		}
	}
	return nil
}

// pairRegions fills the region pairs with the layers that both ranks hold.
func (q *Pair) pairRegions() error {
	there, here := q.p.layers(), q.d.layers()
	seen := make(map[int]bool, len(here))
	for _, r := range q.d.regions {
		if seen[r.Layer] {
			continue
		}
		seen[r.Layer] = true
		from, to := there[r.Layer], here[r.Layer]
		if len(from) == 0 {
			continue // another stage's
		}
		if len(from) != len(to) {
			return unplannable(fmt.Sprintf("regions of layer %d", r.Layer), len(from), len(to))
		}
		g := q.d.groupOf[r.Layer]
		if pg := q.p.groupOf[r.Layer]; pg != g {
			return unplannable(fmt.Sprintf("group of layer %d", r.Layer), pg, g)
		}
		for i := range to {
			if from[i].Planes != to[i].Planes {
				return unplannable(fmt.Sprintf("planes of layer %d", r.Layer), from[i].Planes, to[i].Planes)
			}
			l := regionPair{p: from[i], d: to[i]}
			if n := len(q.groups[g]); n > 0 && sameCut(&q.groups[g][n-1], &l) {
				l.segments = q.groups[g][n-1].segments
			} else if l.segments = q.cut(g, &l.p, &l.d); l.segments == nil {
				return unplannable(fmt.Sprintf("pieces of layer %d", r.Layer), q.segmentsCut, maxSegments)
			}
			q.groups[g] = append(q.groups[g], l)
		}
	}
	return nil
}

// maxSegments bounds the copies of one common block of all regions that are cut differently, before they are merged: a record
// comes from outside.
const maxSegments = 1 << 20

// cut lists what this producer writes of one common block, merged as far as both sides allow; nil if it is too much.
func (q *Pair) cut(g int, p, d *metadata.Region) []segment {
	pg, dg := &q.p.groups[g], &q.d.groups[g]
	if n := uint64(p.Planes) * uint64(dg.heads); n > maxSegments || n*uint64(q.commonBlock) > maxSegments {
		q.segmentsCut += maxSegments + 1
	} else {
		q.segmentsCut += int(n) * q.commonBlock
	}
	if q.segmentsCut > maxSegments {
		return nil
	}
	all := []segment{}
	for k := range uint64(p.Planes) {
		for head := dg.first; head < dg.first+dg.heads; head++ {
			if writerOf(q.d.rank.TP, head, q.p.size.TP, q.d.size.TP, pg.model) != q.p.rank.TP {
				continue
			}
			ph, dh := uint64(head-pg.first), uint64(head-dg.first)
			for t := range uint64(q.commonBlock) {
				all = append(all, segment{
					p:      k*p.PlaneStride + ph*p.HeadStride + t*p.TokenStride,
					d:      k*d.PlaneStride + dh*d.HeadStride + t*d.TokenStride,
					length: pg.bytes,
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b segment) int { return cmp.Compare(a.d, b.d) })
	merged := all[:0]
	for _, x := range all {
		if n := len(merged); n > 0 {
			if m := &merged[n-1]; m.p+m.length == x.p && m.d+m.length == x.d {
				m.length += x.length
				continue
			}
		}
		merged = append(merged, x)
	}
	return slices.Clip(merged)
}

// writerOf returns which of p producer ranks writes a head for one of d consumers.
func writerOf(consumer, head, p, d, heads int) int {
	if p <= d {
		return consumer * p / d
	}
	return max(consumer*(p/d), head*p/heads)
}

// related says whether this producer has anything to do with this consumer: a write or a notification.
func (q *Pair) related() bool {
	return InSlice(q.p.rank.TP, q.d.rank.TP, q.p.size.TP, q.d.size.TP) && q.shared()
}

// InSlice reports whether a producer rank and a consumer rank meet: of the tensor-parallel sizes p and d one divides the other, and each rank
// of the smaller engine meets as many of the larger.
func InSlice(producer, consumer, p, d int) bool {
	if p <= d {
		return producer == consumer*p/d
	}
	return producer/(p/d) == consumer
}

// shared says whether the two stages have a layer in common.
func (q *Pair) shared() bool {
	return slices.ContainsFunc(q.groups, func(g []regionPair) bool { return len(g) > 0 })
}

// writes says whether this producer writes for this consumer; else it only notifies it.
func (q *Pair) writes() bool {
	return slices.ContainsFunc(q.groups, func(g []regionPair) bool { return len(g) > 0 && len(g[0].segments) > 0 }) && q.related()
}

func sameStrides(a, b *regionPair) bool {
	return a.p.BlockStride == b.p.BlockStride && a.p.TokenStride == b.p.TokenStride &&
		a.d.BlockStride == b.d.BlockStride && a.d.TokenStride == b.d.TokenStride
}

func sameCut(a, b *regionPair) bool {
	return sameStrides(a, b) && a.p.Planes == b.p.Planes &&
		a.p.PlaneStride == b.p.PlaneStride && a.p.HeadStride == b.p.HeadStride &&
		a.d.PlaneStride == b.d.PlaneStride && a.d.HeadStride == b.d.HeadStride
}
