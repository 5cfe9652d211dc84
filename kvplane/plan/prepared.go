package plan

import "pdrouter/kvplane/transfer"

// descriptorTable has the strided regions of a pair, one for each region pair and segment. Their blocks are numbered: a descriptor index is such
// a number.
type descriptorTable struct {
	listed        bool
	local, remote []transfer.StridedRegion
}

// Descriptors returns the strided regions of both sides for a Preparer (NIXL: prepXferDlist); none if they have too many descriptors.
// The slices belong to the pair.
func (q *Pair) Descriptors() (local, remote []transfer.StridedRegion) {
	if !q.descriptors.listed {
		q.listDescriptors()
	}
	return q.descriptors.local, q.descriptors.remote
}

// listDescriptors numbers the descriptors of all strided regions.
func (q *Pair) listDescriptors() {
	q.descriptors = descriptorTable{listed: true}
	locals, remotes := 0, 0
	for g := range q.groups {
		for i := range q.groups[g] {
			l := &q.groups[g][i]
			l.localFirst, l.remoteFirst = int32(locals), int32(remotes)
			for _, x := range l.segments {
				local := transfer.StridedRegion{Base: l.p.Base + x.p, Blocks: l.p.Blocks, BlockStride: l.p.BlockStride,
					Units: q.p.kernel / q.commonBlock, UnitStride: uint64(q.commonBlock) * l.p.TokenStride, Length: x.length}
				remote := transfer.StridedRegion{Base: l.d.Base + x.d, Blocks: l.d.Blocks, BlockStride: l.d.BlockStride,
					Units: q.d.kernel / q.commonBlock, UnitStride: uint64(q.commonBlock) * l.d.TokenStride, Length: x.length}
				locals, remotes = locals+local.Places(), remotes+remote.Places()
				if locals > transfer.MaxPlaces || remotes > transfer.MaxPlaces {
					q.descriptors = descriptorTable{listed: true}
					return
				}
				q.descriptors.local, q.descriptors.remote = append(q.descriptors.local, local), append(q.descriptors.remote, remote)
			}
		}
	}
}

// PlanDescriptors is Plan as descriptor indices: it appends to local and remote, which stay of equal length,
// what is copied from where to where. Neighbours are not merged. The error is always a *Refusal.
func (q *Pair) PlanDescriptors(local, remote []int32, n int, need [2]int, p, d []transfer.BlockList) (from, to []int32, err error) {
	if err := q.cover(n, need, p, d); err != nil {
		return local, remote, err
	}
	if here, _ := q.Descriptors(); here == nil && q.Copies() > 0 {
		return local, remote, unplannable("places", "too many", transfer.MaxPlaces)
	}
	pu, du := q.p.kernel/q.commonBlock, q.d.kernel/q.commonBlock
	for g, span := range q.spans {
		q.fromIndices, q.toIndices = q.fromIndices[:0], q.toIndices[:0]
		for t := span[0]; t < span[1]; t += q.commonBlock {
			block, token := q.p.locate(p[g], t)
			q.fromIndices = append(q.fromIndices, int32(block*pu+token/q.commonBlock))
			block, token = q.d.locate(d[g], t)
			q.toIndices = append(q.toIndices, int32(block*du+token/q.commonBlock))
		}
		for i := range q.groups[g] {
			l := &q.groups[g][i]
			at, into := l.localFirst, l.remoteFirst
			for range l.segments {
				for j := range q.fromIndices {
					local, remote = append(local, at+q.fromIndices[j]), append(remote, into+q.toIndices[j])
				}
				at, into = at+int32(l.p.Blocks*pu), into+int32(l.d.Blocks*du)
			}
		}
	}
	return local, remote, nil
}

// Copies returns how many descriptors the transfer planned last takes on either side.
func (q *Pair) Copies() int {
	sum := 0
	for g, span := range q.spans {
		pieces := 0
		for i := range q.groups[g] {
			pieces += len(q.groups[g][i].segments)
		}
		sum += (span[1] - span[0]) / q.commonBlock * pieces
	}
	return sum
}
