package kvplane

import "math/bits"

// Preparer is a Transport that can make a peer's memory ready once, so that a write names places in two lists instead
// of describing them.
type Preparer interface {
	// Prepare makes the places of both sides ready for WritePrepared to a connected peer, in the course of later calls
	// of Poll, and says whether they are. Until then, which may be for ever, there is Write. Only the first call after
	// Connect counts, so it may be made before every write. The slices are not changed, nor may the caller change them.
	Prepare(agent string, local, remote []Grid) bool
	// WritePrepared is Write of place local[i] to place remote[i]. Neither list nor notify is kept.
	WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error
}

// Grid is equal stretches of memory at regular places: in each of Blocks, Units of them. A list of grids numbers its
// places through, block by block and unit by unit.
type Grid struct {
	Base        uint64 // address of the first place
	BlockStride uint64
	UnitStride  uint64
	Length      uint64 // bytes of each place
	Blocks      int
	Units       int
}

// Places returns how many there are.
func (g Grid) Places() int { return g.Blocks * g.Units }

// at returns the address of a place.
func (g Grid) at(i int) uint64 {
	return g.Base + uint64(i/g.Units)*g.BlockStride + uint64(i%g.Units)*g.UnitStride
}

// extent returns how many bytes the grid reaches from Base on, and false for one that is empty or too large to count.
func (g Grid) extent() (uint64, bool) {
	if g.Blocks < 1 || g.Units < 1 || g.Blocks > maxPlaces || g.Units > maxPlaces || g.Length == 0 {
		return 0, false
	}
	sum := g.Length
	for _, p := range [2][2]uint64{{uint64(g.Blocks - 1), g.BlockStride}, {uint64(g.Units - 1), g.UnitStride}} {
		high, low := bits.Mul64(p[0], p[1])
		next, carry := bits.Add64(sum, low, 0)
		if high|carry != 0 {
			return 0, false
		}
		sum = next
	}
	return sum, true
}

// maxPlaces bounds either side's list. A place costs NIXL about 30 bytes, and 0.15 µs of a poll once; a pair that has
// more is written range by range, which costs 0.2 µs for each range of each write instead of 0.02 µs.
const maxPlaces = 1 << 21

// places are the grids of a pair, one for each lane and piece.
type places struct {
	made          bool
	local, remote []Grid
}

// Places returns the grids of both sides, to be made ready by a Preparer; none if they have too many places.
// The slices belong to the pair.
func (q *Pair) Places() (local, remote []Grid) {
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
				local := Grid{Base: l.p.Base + x.p, Blocks: l.p.Blocks, BlockStride: l.p.BlockStride,
					Units: q.p.kernel / q.unit, UnitStride: uint64(q.unit) * l.p.TokenStride, Length: x.length}
				remote := Grid{Base: l.d.Base + x.d, Blocks: l.d.Blocks, BlockStride: l.d.BlockStride,
					Units: q.d.kernel / q.unit, UnitStride: uint64(q.unit) * l.d.TokenStride, Length: x.length}
				locals, remotes = locals+local.Places(), remotes+remote.Places()
				if locals > maxPlaces || remotes > maxPlaces {
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
func (q *Pair) PlanPlaces(local, remote []int32, n int, need [2]int, p, d []BlockList) (from, to []int32, err error) {
	if err := q.cover(n, need, p, d); err != nil {
		return local, remote, err
	}
	if here, _ := q.Places(); here == nil && q.copies() > 0 {
		return local, remote, unplannable("places", "too many", maxPlaces)
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

// copies returns how many places the transfer planned last takes on either side.
func (q *Pair) copies() int {
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
