package kvplane

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
	from   []uint64 // scratch: per unit, offset on P
	to     []uint64 // scratch: per unit, offset on D
	runs   []run    // scratch
}

// lane is one region of P and the region of D that holds the same layer.
type lane struct {
	p, d   metadata.Region
	pieces []stretch
}

// stretch is a contiguous copy inside one unit, relative to the unit's place in either region.
type stretch struct{ p, d, length uint64 }

// run is a number of units that follow each other without a gap on both sides.
type run struct {
	p, d  uint64
	units int
}

// Allow names what is refused unless a deployment asks for it.
type Allow struct {
	// TokensFirstSplit lets ranks with different numbers of heads exchange tokens-first blocks, which takes one range
	// per token and head.
	TokensFirstSplit bool
}

// NewPair plans between two ranks. The error is a *Refusal if the records are sound but do not fit each other.
func NewPair(p, d metadata.Record, allow Allow) (*Pair, error) {
	ps, err := newShape(p)
	if err != nil {
		return nil, err
	}
	ds, err := newShape(d)
	if err != nil {
		return nil, err
	}
	if err := fits(p, d); err != nil {
		return nil, err
	}
	q := &Pair{p: ps, d: ds, unit: min(ps.kernel, ds.kernel)}
	if r := q.refuse(allow); r != nil {
		return nil, r
	}
	q.groups = make([][]lane, len(ps.groups))
	return q, q.connect()
}

// fits refuses two records that could not be brought together whatever their ranks.
func fits(p, d metadata.Record) error {
	pl, dl := p.Layout, d.Layout
	memory := func(l metadata.Layout) string {
		if l.MemoryType == "" {
			return "dram"
		}
		return l.MemoryType
	}
	switch {
	case p.Compatibility != d.Compatibility:
		return unplannable("compatibility", p.Compatibility, d.Compatibility)
	case p.Connector != d.Connector:
		return unplannable("connector", p.Connector, d.Connector)
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

func (q *Pair) refuse(allow Allow) error {
	p, d := &q.p, &q.d
	switch big := max(p.kernel, d.kernel); {
	case big%q.unit != 0:
		return unplannable("kernel block tokens", p.kernel, d.kernel)
	case big == 1: // one token: both orders are the same
	case p.order != d.order && (p.heads > 1 || d.heads > 1):
		return unplannable("order", p.order, d.order)
	case p.order == metadata.TokensFirst && p.heads != d.heads && !allow.TokensFirstSplit:
		return unplannable("heads per rank, tokens first", p.heads, d.heads)
	}
	if len(p.groups) != len(d.groups) {
		return unplannable("groups", len(p.groups), len(d.groups))
	}
	for i := range p.groups {
		if p.groups[i].Window != d.groups[i].Window {
			return unplannable(fmt.Sprintf("window of group %d", i), p.groups[i].Window, d.groups[i].Window)
		}
	}
	return nil
}

// connect fills the lanes with the layers that both ranks hold.
func (q *Pair) connect() error {
	p, d := &q.p, &q.d
	seen := map[int]bool{}
	for _, r := range d.regions {
		if seen[r.Layer] {
			continue
		}
		seen[r.Layer] = true
		from, to := p.layer(r.Layer), d.layer(r.Layer)
		if len(from) == 0 {
			continue // another stage's
		}
		if len(from) != len(to) {
			return unplannable(fmt.Sprintf("regions of layer %d", r.Layer), len(from), len(to))
		}
		g := d.group(r.Layer)
		if pg := p.group(r.Layer); pg != g {
			return unplannable(fmt.Sprintf("group of layer %d", r.Layer), pg, g)
		}
		for i := range to {
			if from[i].Planes != to[i].Planes {
				return unplannable(fmt.Sprintf("planes of layer %d", r.Layer), from[i].Planes, to[i].Planes)
			}
			l := lane{p: from[i], d: to[i]}
			if n := len(q.groups[g]); n > 0 && sameCut(&q.groups[g][n-1], &l) {
				l.pieces = q.groups[g][n-1].pieces
			} else if l.pieces = q.cut(&l.p, &l.d); l.pieces == nil {
				return unplannable(fmt.Sprintf("pieces of layer %d", r.Layer), from[i].Planes*p.heads*q.unit, maxPieces)
			}
			q.groups[g] = append(q.groups[g], l)
		}
	}
	return nil
}

// maxPieces bounds the copies of one unit of one region before they are merged: a record comes from outside.
const maxPieces = 1 << 20

// cut lists what this producer writes of one unit, merged as far as both sides allow; nil if it is too much.
func (q *Pair) cut(p, d *metadata.Region) []stretch {
	if uint64(p.Planes)*uint64(q.d.heads)*uint64(q.unit) > maxPieces {
		return nil
	}
	all := []stretch{}
	for k := range uint64(p.Planes) {
		for head := q.d.first; head < q.d.first+q.d.heads; head++ {
			if q.writer(head) != q.p.rank.TP {
				continue
			}
			ph, dh := uint64(head-q.p.first), uint64(head-q.d.first)
			for t := range uint64(q.unit) {
				all = append(all, stretch{
					p:      k*p.PlaneStride + ph*p.HeadStride + t*p.TokenStride,
					d:      k*d.PlaneStride + dh*d.HeadStride + t*d.TokenStride,
					length: q.p.bytes,
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

// writer returns which producer rank writes a head for this consumer.
func (q *Pair) writer(head int) int {
	return writerOf(q.d.rank.TP, head, q.p.size.TP, q.d.size.TP, q.p.model)
}

func writerOf(consumer, head, p, d, heads int) int {
	if p <= d {
		return consumer * p / d
	}
	return max(consumer*(p/d), head*p/heads)
}

// related says whether this producer has anything to do with this consumer: a write or a notification.
func (q *Pair) related() bool {
	return inSlice(q.p.rank.TP, q.d.rank.TP, q.p.size.TP, q.d.size.TP) && q.shared()
}

func inSlice(producer, consumer, p, d int) bool {
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

// Plan appends to dst what P copies so that D holds tokens [need[0], need[1]) of a request of which P has computed n
// tokens, and returns it. The lists are one per group. The error is always a *Refusal.
func (q *Pair) Plan(dst []Range, n int, need [2]int, p, d []BlockList) ([]Range, error) {
	if len(p) != len(q.groups) || len(d) != len(q.groups) {
		return dst, short("block lists", len(p), len(d))
	}
	if need[0] < 0 || need[0] > need[1] {
		return dst, short("tokens needed", n, need)
	}
	if need[0] == need[1] {
		return dst, nil // D is ready already: nothing may land any more
	}
	if n < need[1] {
		return dst, short("tokens computed and needed", n, need[1])
	}
	if !q.related() {
		return dst, unplannable("rank", q.p.rank, q.d.rank)
	}
	for g := range q.groups {
		if len(q.groups[g]) == 0 {
			continue
		}
		from, to, err := q.span(g, n, need, p[g], d[g])
		if err != nil {
			return dst, err
		}
		dst = q.emit(dst, g, from, to, p[g], d[g])
	}
	return dst, nil
}

// span returns the tokens [from, to) that a group's lists have in common, after checking that they cover the need.
func (q *Pair) span(g, n int, need [2]int, p, d BlockList) (from, to int, err error) {
	if err := q.p.check(p, g); err != nil {
		return 0, 0, short(fmt.Sprintf("list of group %d", g), err, "-")
	}
	if err := q.d.check(d, g); err != nil {
		return 0, 0, short(fmt.Sprintf("list of group %d", g), "-", err)
	}
	u := q.unit
	from = max(p.First, d.First)
	to = min((n+u-1)/u*u, q.p.reach(p), q.d.reach(d))
	first := need[0]
	if w := q.d.groups[g].Window; w > 0 {
		first = max(first, (need[1]-w)/q.d.kernel*q.d.kernel)
	}
	if first < from || need[1] > to {
		return 0, 0, short(fmt.Sprintf("tokens of group %d", g),
			fmt.Sprintf("[%d,%d)", p.First, min(n, q.p.reach(p))),
			fmt.Sprintf("[%d,%d) in [%d,%d)", first, need[1], d.First, q.d.reach(d)))
	}
	return from, to, nil
}

// emit appends the ranges of one group. Lanes of equal strides, which is the rule, share one walk over the units.
func (q *Pair) emit(dst []Range, g, from, to int, p, d BlockList) []Range {
	var last *lane
	var length uint64
	for i := range q.groups[g] {
		l := &q.groups[g][i]
		if last == nil || !sameWalk(last, l) {
			q.from, q.to = q.from[:0], q.to[:0]
			for t := from; t < to; t += q.unit {
				q.from = append(q.from, q.p.unit(p, t, &l.p))
				q.to = append(q.to, q.d.unit(d, t, &l.d))
			}
			last, length = l, 0
		}
		for _, x := range l.pieces {
			if x.length != length {
				q.join(x.length)
				length = x.length
			}
			for _, r := range q.runs {
				dst = append(dst, Range{
					Local:  l.p.Base + r.p + x.p,
					Remote: l.d.Base + r.d + x.d,
					Length: uint64(r.units) * x.length,
				})
			}
		}
	}
	return dst
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

// join cuts the walk into runs in which one piece of each unit ends where the next unit's begins, on both sides.
func (q *Pair) join(length uint64) {
	q.runs = q.runs[:0]
	for i := range q.from {
		if n := len(q.runs); n > 0 {
			r := &q.runs[n-1]
			have := uint64(r.units) * length
			if r.p+have == q.from[i] && r.d+have == q.to[i] {
				r.units++
				continue
			}
		}
		q.runs = append(q.runs, run{p: q.from[i], d: q.to[i], units: 1})
	}
}

// Rest appends the ranges of D's memory (in Remote; Local is 0) in D's last kernel block that no producer writes when
// P has computed n tokens: old memory, which D clears before decode. It is empty unless D's blocks are the larger.
func (q *Pair) Rest(dst []Range, n int, d []BlockList) []Range {
	for g, lanes := range q.groups {
		if g >= len(d) || q.d.check(d[g], g) != nil {
			continue
		}
		end := (n + q.unit - 1) / q.unit * q.unit
		if end%q.d.kernel == 0 || end < d[g].First || end >= q.d.reach(d[g]) {
			continue
		}
		for i := range lanes {
			r := &lanes[i].d
			at := r.Base + q.d.unit(d[g], end, r)
			for k := range uint64(r.Planes) {
				for h := range uint64(q.d.heads) {
					for t := range uint64(q.d.kernel - end%q.d.kernel) {
						dst = append(dst, Range{Remote: at + k*r.PlaneStride + h*r.HeadStride + t*r.TokenStride, Length: q.d.bytes})
					}
				}
			}
		}
	}
	return dst
}
