// Package plan computes which bytes of a producer rank go where in the memory of a consumer rank, and which ranks a consumer waits for and a
// producer writes for. All of it is pure: it reads records and block lists, and returns ranges or descriptor indices. It knows no transport,
// no message and no clock.
//
// count.go has Producers and Consumers, which agent/peers.go asks when the records of a peer are here. pair.go has the part of a plan that is
// the same for all transfers of two ranks, plan.go one transfer (agent/post.go), prepared.go the same as indices.
package plan

import (
	"fmt"

	"pdrouter/kvplane/transfer"
)

// blockRun is a number of common blocks that follow each other without a gap on both sides.
type blockRun struct {
	p, d   uint64
	blocks int
}

// Plan appends to dst what P copies so that D holds tokens [need[0], need[1]) of a request with n tokens
// that P has computed, and returns it. The lists are one per group. The error is always a *Refusal, and then nothing is appended.
func (q *Pair) Plan(dst []transfer.Range, n int, need [2]int, p, d []transfer.BlockList) ([]transfer.Range, error) {
	if err := q.cover(n, need, p, d); err != nil {
		return dst, err
	}
	for g, span := range q.spans {
		dst = q.emit(dst, g, span[0], span[1], p[g], d[g])
	}
	return dst, nil
}

// cover finds the tokens of each group that are copied, none if D needs nothing, and refuses a transfer that would not
// bring D what it needs.
func (q *Pair) cover(n int, need [2]int, p, d []transfer.BlockList) error {
	q.spans = q.spans[:0]
	switch {
	case len(p) != len(q.groups) || len(d) != len(q.groups):
		return short("block lists", len(p), len(d))
	case need[0] < 0 || need[0] > need[1] || need[1] > transfer.MaxTokens || n > transfer.MaxTokens:
		return short("tokens needed", n, need)
	case need[0] == need[1]:
		return nil // D is ready already: nothing may land any more
	case n < need[1]:
		return short("tokens computed and needed", n, need[1])
	case !q.related():
		return unplannable("rank", q.p.rank, q.d.rank)
	}
	for g := range q.groups {
		var span [2]int
		if len(q.groups[g]) > 0 {
			var err error
			if span, err = q.span(g, n, need, p[g], d[g]); err != nil {
				q.spans = q.spans[:0]
				return err
			}
		}
		q.spans = append(q.spans, span)
	}
	return nil
}

// span returns the tokens [from, to) that a group's lists have in common, after checking that they cover the need.
// Of a window only what lies in it is wanted, wherever the lists begin.
func (q *Pair) span(g, n int, need [2]int, p, d transfer.BlockList) (span [2]int, err error) {
	if err := q.p.check(p, g); err != nil {
		return span, short(fmt.Sprintf("list of group %d", g), err, "-")
	}
	if err := q.d.check(d, g); err != nil {
		return span, short(fmt.Sprintf("list of group %d", g), "-", err)
	}
	u := q.commonBlock
	from, to := max(p.First, d.First), min((n+u-1)/u*u, q.p.reach(p), q.d.reach(d))
	first := need[0]
	if w := q.d.groups[g].window; w > 0 && need[1] > w {
		begin := (need[1] - w) / q.d.kernel * q.d.kernel
		first, from = max(first, begin), max(from, begin)
	}
	if first < max(p.First, d.First) || need[1] > to {
		return span, short(fmt.Sprintf("tokens of group %d", g),
			fmt.Sprintf("[%d,%d)", p.First, min(n, q.p.reach(p))),
			fmt.Sprintf("[%d,%d) in [%d,%d)", first, need[1], d.First, q.d.reach(d)))
	}
	return [2]int{from, to}, nil
}

// emit appends the ranges of one group. Region pairs of equal strides, which is the rule, share one walk over the common blocks.
func (q *Pair) emit(dst []transfer.Range, g, from, to int, p, d transfer.BlockList) []transfer.Range {
	var last *regionPair
	var length uint64
	for i := range q.groups[g] {
		l := &q.groups[g][i]
		if last == nil || !sameStrides(last, l) {
			q.fromOffsets, q.toOffsets = q.fromOffsets[:0], q.toOffsets[:0]
			for t := from; t < to; t += q.commonBlock {
				q.fromOffsets = append(q.fromOffsets, q.p.offset(p, t, &l.p))
				q.toOffsets = append(q.toOffsets, q.d.offset(d, t, &l.d))
			}
			last, length = l, 0
		}
		for _, x := range l.segments {
			if x.length != length {
				q.join(x.length)
				length = x.length
			}
			for _, r := range q.runs {
				dst = append(dst, transfer.Range{
					Local:  l.p.Base + r.p + x.p,
					Remote: l.d.Base + r.d + x.d,
					Length: uint64(r.blocks) * x.length,
				})
			}
		}
	}
	return dst
}

// join cuts the walk into runs in which one segment of each common block ends where the next common block's begins, on both sides.
func (q *Pair) join(length uint64) {
	q.runs = q.runs[:0]
	for i := range q.fromOffsets {
		if n := len(q.runs); n > 0 {
			r := &q.runs[n-1]
			have := uint64(r.blocks) * length
			if r.p+have == q.fromOffsets[i] && r.d+have == q.toOffsets[i] {
				r.blocks++
				continue
			}
		}
		q.runs = append(q.runs, blockRun{p: q.fromOffsets[i], d: q.toOffsets[i], blocks: 1})
	}
}

// LeavesRest reports whether Rest may return something: D's kernel blocks are larger than P's.
func (q *Pair) LeavesRest() bool { return q.d.kernel > q.commonBlock }

// Rest appends the ranges of D's memory (in Remote; Local is 0) in D's last kernel block that no producer writes when
// P has computed n tokens: old memory, which D clears before decode. It is empty unless D's blocks are the larger.
func (q *Pair) Rest(dst []transfer.Range, n int, d []transfer.BlockList) []transfer.Range {
	for g, lanes := range q.groups {
		if g >= len(d) || q.d.check(d[g], g) != nil {
			continue
		}
		end := (n + q.commonBlock - 1) / q.commonBlock * q.commonBlock
		if end%q.d.kernel == 0 || end < d[g].First || end >= q.d.reach(d[g]) {
			continue
		}
		of := &q.d.groups[g]
		for i := range lanes {
			r := &lanes[i].d
			at := r.Base + q.d.offset(d[g], end, r)
			for k := range uint64(r.Planes) {
				for h := range uint64(of.heads) {
					for t := range uint64(q.d.kernel - end%q.d.kernel) {
						dst = append(dst, transfer.Range{Remote: at + k*r.PlaneStride + h*r.HeadStride + t*r.TokenStride, Length: of.bytes})
					}
				}
			}
		}
	}
	return dst
}
