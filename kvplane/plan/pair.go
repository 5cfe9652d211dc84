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
	p, d   shape
	unit   int // u: tokens of the smaller kernel block
	groups [][]lane
	pieces int // copies made so far while the lanes were cut
	places places
	spans  [][2]int // scratch: per group, the tokens that are copied
	from   []uint64 // scratch: per unit, offset on P
	to     []uint64 // scratch: per unit, offset on D
	fromAt []int32  // scratch: per unit, place on P
	toAt   []int32  // scratch: per unit, place on D
	runs   []run    // scratch
}

// lane is one region of P and the region of D that holds the same layer.
type lane struct {
	p, d     metadata.Region
	pieces   []stretch
	localAt  int32 // number of its first place on P
	remoteAt int32 // and on D
}

// stretch is a contiguous copy inside one unit, relative to the unit's place in either region.
type stretch struct{ p, d, length uint64 }

// Allow names what is refused unless a deployment asks for it.
type Allow struct {
	// TokensFirstSplit lets ranks with different numbers of heads exchange tokens-first blocks, which takes one range
	// per token and head.
	TokensFirstSplit bool
}

// New plans between two ranks. The error is a *Refusal if the records are sound but do not fit each other.
func New(p, d metadata.Record, allow Allow) (*Pair, error) {
	ps, err := newShape(p)
	if err != nil {
		return nil, uneven(err, p, d)
	}
	ds, err := newShape(d)
	if err != nil {
		return nil, uneven(err, p, d)
	}
	if err := fits(p, d); err != nil {
		return nil, err
	}
	q := &Pair{p: ps, d: ds, unit: min(ps.kernel, ds.kernel), groups: make([][]lane, len(ps.groups))}
	if err := q.refuse(allow); err != nil {
		return nil, err
	}
	if err := q.connect(); err != nil {
		return nil, err
	}
	return q, nil
}

// fits refuses two records that could not be brought together whatever their ranks.
func fits(p, d metadata.Record) error {
	pl, dl := p.Layout, d.Layout
	memory := func(l metadata.Layout) string { return cmp.Or(l.MemoryType, "dram") }
	switch {
	case p.Compatibility != d.Compatibility:
		return unplannable("compatibility", p.Compatibility, d.Compatibility)
	case p.Connector != d.Connector:
		return unplannable("connector", p.Connector, d.Connector)
	case !p.SameProtocol(d):
		return unplannable("connector version", p.ConnectorVersion, d.ConnectorVersion)
	case p.Transport != d.Transport:
		return unplannable("transport", p.Transport, d.Transport)
	case p.Size.DP > 1 || d.Size.DP > 1:
		return unplannable("data-parallel size", p.Size.DP, d.Size.DP)
	case p.Size.TP%d.Size.TP != 0 && d.Size.TP%p.Size.TP != 0:
		return unplannable("tensor-parallel size", p.Size.TP, d.Size.TP)
	case pl.Heads != dl.Heads:
		return unplannable("heads", pl.Heads, dl.Heads)
	case pl.HeadBytes != dl.HeadBytes:
		return unplannable("head bytes", pl.HeadBytes, dl.HeadBytes)
	case pl.DType != dl.DType:
		return unplannable("dtype", pl.DType, dl.DType)
	case pl.Replicated != dl.Replicated:
		return unplannable("replicated", pl.Replicated, dl.Replicated)
	case memory(pl) != memory(dl) && p.Transport != "nixl":
		return unplannable("memory type", memory(pl), memory(dl))
	}
	return nil
}

// refuse compares what the ranks are made of, group by group.
func (q *Pair) refuse(allow Allow) error {
	big := max(q.p.kernel, q.d.kernel)
	if big%q.unit != 0 {
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

// connect fills the lanes with the layers that both ranks hold.
func (q *Pair) connect() error {
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
			l := lane{p: from[i], d: to[i]}
			if n := len(q.groups[g]); n > 0 && sameCut(&q.groups[g][n-1], &l) {
				l.pieces = q.groups[g][n-1].pieces
			} else if l.pieces = q.cut(g, &l.p, &l.d); l.pieces == nil {
				return unplannable(fmt.Sprintf("pieces of layer %d", r.Layer), q.pieces, maxPieces)
			}
			q.groups[g] = append(q.groups[g], l)
		}
	}
	return nil
}

// maxPieces bounds the copies of one unit of all regions that are cut differently, before they are merged: a record
// comes from outside.
const maxPieces = 1 << 20

// cut lists what this producer writes of one unit, merged as far as both sides allow; nil if it is too much.
func (q *Pair) cut(g int, p, d *metadata.Region) []stretch {
	pg, dg := &q.p.groups[g], &q.d.groups[g]
	if n := uint64(p.Planes) * uint64(dg.heads); n > maxPieces || n*uint64(q.unit) > maxPieces {
		q.pieces += maxPieces + 1
	} else {
		q.pieces += int(n) * q.unit
	}
	if q.pieces > maxPieces {
		return nil
	}
	all := []stretch{}
	for k := range uint64(p.Planes) {
		for head := dg.first; head < dg.first+dg.heads; head++ {
			if writerOf(q.d.rank.TP, head, q.p.size.TP, q.d.size.TP, pg.model) != q.p.rank.TP {
				continue
			}
			ph, dh := uint64(head-pg.first), uint64(head-dg.first)
			for t := range uint64(q.unit) {
				all = append(all, stretch{
					p:      k*p.PlaneStride + ph*p.HeadStride + t*p.TokenStride,
					d:      k*d.PlaneStride + dh*d.HeadStride + t*d.TokenStride,
					length: pg.bytes,
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.d, b.d) })
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
	return slices.ContainsFunc(q.groups, func(g []lane) bool { return len(g) > 0 })
}

// writes says whether this producer writes for this consumer; else it only notifies it.
func (q *Pair) writes() bool {
	return slices.ContainsFunc(q.groups, func(g []lane) bool { return len(g) > 0 && len(g[0].pieces) > 0 }) && q.related()
}

func sameWalk(a, b *lane) bool {
	return a.p.BlockStride == b.p.BlockStride && a.p.TokenStride == b.p.TokenStride &&
		a.d.BlockStride == b.d.BlockStride && a.d.TokenStride == b.d.TokenStride
}

func sameCut(a, b *lane) bool {
	return sameWalk(a, b) && a.p.Planes == b.p.Planes &&
		a.p.PlaneStride == b.p.PlaneStride && a.p.HeadStride == b.p.HeadStride &&
		a.d.PlaneStride == b.d.PlaneStride && a.d.HeadStride == b.d.HeadStride
}
