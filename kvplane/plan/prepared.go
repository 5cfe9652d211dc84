package plan

import "pdrouter/kvplane/transfer"

// places are the grids of a pair, one for each lane and piece.
type places struct {
	made          bool
	local, remote []transfer.StridedRegion
}

// Places returns the grids of both sides, to be made ready by a Preparer; none if they have too many places.
// The slices belong to the pair.
func (q *Pair) Places() (local, remote []transfer.StridedRegion) {
	if !q.places.made {
		q.number()
	}
	return q.places.local, q.places.remote
}

// number lists the grids and tells each lane where its own begin.
func (q *Pair) number() {
	q.places = places{made: true}
	locals, remotes := 0, 0
	for g := range q.groups {
		for i := range q.groups[g] {
			l := &q.groups[g][i]
			l.localAt, l.remoteAt = int32(locals), int32(remotes)
			for _, x := range l.pieces {
				local := transfer.StridedRegion{Base: l.p.Base + x.p, Blocks: l.p.Blocks, BlockStride: l.p.BlockStride,
					Units: q.p.kernel / q.unit, UnitStride: uint64(q.unit) * l.p.TokenStride, Length: x.length}
				remote := transfer.StridedRegion{Base: l.d.Base + x.d, Blocks: l.d.Blocks, BlockStride: l.d.BlockStride,
					Units: q.d.kernel / q.unit, UnitStride: uint64(q.unit) * l.d.TokenStride, Length: x.length}
				locals, remotes = locals+local.Places(), remotes+remote.Places()
				if locals > transfer.MaxPlaces || remotes > transfer.MaxPlaces {
					q.places = places{made: true}
					return
				}
				q.places.local, q.places.remote = append(q.places.local, local), append(q.places.remote, remote)
			}
		}
	}
}

// PlanPlaces is Plan as places in the grids of Places: it appends to local and remote, which stay of equal length,
// what is copied from where to where. Neighbours are not merged. The error is always a *Refusal.
func (q *Pair) PlanPlaces(local, remote []int32, n int, need [2]int, p, d []transfer.BlockList) (from, to []int32, err error) {
	if err := q.cover(n, need, p, d); err != nil {
		return local, remote, err
	}
	if here, _ := q.Places(); here == nil && q.Copies() > 0 {
		return local, remote, unplannable("places", "too many", transfer.MaxPlaces)
	}
	pu, du := q.p.kernel/q.unit, q.d.kernel/q.unit
	for g, span := range q.spans {
		q.fromAt, q.toAt = q.fromAt[:0], q.toAt[:0]
		for t := span[0]; t < span[1]; t += q.unit {
			block, token := q.p.place(p[g], t)
			q.fromAt = append(q.fromAt, int32(block*pu+token/q.unit))
			block, token = q.d.place(d[g], t)
			q.toAt = append(q.toAt, int32(block*du+token/q.unit))
		}
		for i := range q.groups[g] {
			l := &q.groups[g][i]
			at, into := l.localAt, l.remoteAt
			for range l.pieces {
				for j := range q.fromAt {
					local, remote = append(local, at+q.fromAt[j]), append(remote, into+q.toAt[j])
				}
				at, into = at+int32(l.p.Blocks*pu), into+int32(l.d.Blocks*du)
			}
		}
	}
	return local, remote, nil
}

// Copies returns how many places the transfer planned last takes on either side.
func (q *Pair) Copies() int {
	sum := 0
	for g, span := range q.spans {
		pieces := 0
		for i := range q.groups[g] {
			pieces += len(q.groups[g][i].pieces)
		}
		sum += (span[1] - span[0]) / q.unit * pieces
	}
	return sum
}
