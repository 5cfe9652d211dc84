package transfer

import "math/bits"

// BlockList is one group's blocks of a request on one rank: Blocks[j] holds the tokens from First + j·L on,
// L being the rank's logical block size. The ids are logical.
type BlockList struct {
	First  int // token index where Blocks[0] begins; a multiple of the kernel block size
	Blocks []int32
}

// CountBlocks is how many blocks all groups have together.
func CountBlocks(groups []BlockList) int {
	n := 0
	for _, g := range groups {
		n += len(g.Blocks)
	}
	return n
}

// MaxTokens is how many tokens a request may have.
const MaxTokens = 1 << 40

// Range is one contiguous copy from this rank's memory to a peer's, both as addresses in their owner's space.
type Range struct {
	Local  uint64
	Remote uint64
	Length uint64
}

// StridedRegion is equal stretches of memory at regular places: in each of Blocks, Units of them. A list of regions numbers its
// places through, block by block and unit by unit.
type StridedRegion struct {
	Base        uint64 // address of the first place
	BlockStride uint64
	UnitStride  uint64
	Length      uint64 // bytes of each place
	Blocks      int
	Units       int
}

// Places returns how many there are.
func (g StridedRegion) Places() int { return g.Blocks * g.Units }

// At returns the address of a place.
func (g StridedRegion) At(i int) uint64 {
	return g.Base + uint64(i/g.Units)*g.BlockStride + uint64(i%g.Units)*g.UnitStride
}

// Extent returns how many bytes the region reaches from Base on, and false for one that is empty or too large to count.
func (g StridedRegion) Extent() (uint64, bool) {
	if g.Blocks < 1 || g.Units < 1 || g.Blocks > MaxPlaces || g.Units > MaxPlaces || g.Length == 0 {
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

// MaxPlaces bounds either side's list. A place costs NIXL about 30 bytes, and 0.15 µs of a poll once; a pair that has
// more is written range by range, which costs 0.2 µs for each range of each write instead of 0.02 µs.
const MaxPlaces = 1 << 21
