package refengine

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// wordBytes is the size of a KV word. Words are little endian in memory.
const wordBytes = 8

// span is the heads, or the layers, that a rank keeps: count from first.
type span struct {
	first, count int
}

// layersOf says which of the layers a stage keeps. The first stages keep one more where they cannot be shared evenly.
func layersOf(layers, stage, stages int) span {
	n, more := layers/stages, layers%stages
	s := span{stage*n + min(stage, more), n}
	if stage < more {
		s.count++
	}
	return s
}

func (s span) has(i int) bool { return i >= s.first && i < s.first+s.count }

// headsOf says which of heads KV heads rank r of ranks keeps. More ranks than heads share heads: each keeps one.
func headsOf(heads, r, ranks int) span {
	if ranks <= heads {
		n := heads / ranks
		return span{r * n, n}
	}
	return span{r * heads / ranks, 1}
}

// cache is one rank's paged KV memory: one region per layer, K and V planes joined inside each block.
// It has one user at a time, but for the plane, which writes into blocks that nobody else uses.
type cache struct {
	memory blockMemory
	layers span // of this rank's stage
	blocks int
	tokens int // of a block
	dim    int // words of one head
	heads  span

	// bytes
	layerStride, blockStride, planeStride, headStride, tokenStride int
	order                                                          metadata.Order
}

// newCache lays out the memory of one rank and allocates it.
func newCache(c Config, rank int, heads, layers span) (*cache, error) {
	word := c.Shape.HeadDim * wordBytes
	m := &cache{layers: layers, blocks: c.Blocks, tokens: c.BlockTokens, dim: c.Shape.HeadDim, heads: heads, order: c.Order}
	switch c.Order {
	case metadata.TokensFirst:
		m.headStride, m.tokenStride = word, heads.count*word
	default:
		m.headStride, m.tokenStride = c.BlockTokens*word, word
	}
	m.planeStride = heads.count * c.BlockTokens * word
	m.blockStride = planes * m.planeStride
	m.layerStride = m.blockStride * c.Blocks
	var err error
	if c.Device != nil {
		m.memory, err = newDeviceMemory(c.Device, rank, m.layerStride*layers.count, m.blockStride)
	} else {
		m.memory, err = newHostMemory(m.layerStride*layers.count, m.blockStride)
	}
	if err != nil {
		return nil, fmt.Errorf("refengine: layers from %d, heads from %d: %w", layers.first, heads.first, err)
	}
	return m, nil
}

// block is where a block of a layer lies in memory. layer counts over the whole model.
func (m *cache) block(layer int, block int32) int {
	return (layer-m.layers.first)*m.layerStride + int(block)*m.blockStride
}

// at is the offset in a block of the words of (plane, head) of the token at place. head counts over the whole model.
func (m *cache) at(plane, head, place int) int {
	return plane*m.planeStride + (head-m.heads.first)*m.headStride + place*m.tokenStride
}

// put stores the words of one head.
func (m *cache) put(layer int, block int32, plane, head, place int, words []uint64) {
	b := m.memory.change(m.block(layer, block))[m.at(plane, head, place):]
	for i, w := range words {
		binary.LittleEndian.PutUint64(b[i*wordBytes:], w)
	}
}

// get reads the words of one head.
func (m *cache) get(layer int, block int32, plane, head, place int, words []uint64) {
	b := m.memory.view(m.block(layer, block))[m.at(plane, head, place):]
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[i*wordBytes:])
	}
}

// sum adds to out the mixed words of one head over the positions [0, end) of a sequence.
func (m *cache) sum(out []uint64, layer, plane, head int, table []int32, end int, keys []uint64) {
	for t := 0; t < end; {
		block := table[t/m.tokens]
		last := min(end, t-t%m.tokens+m.tokens)
		b := m.memory.view(m.block(layer, block))
		at := m.at(plane, head, t%m.tokens)
		for ; t < last; t++ {
			step := uint64(t) * positionStep
			row := b[at : at+m.dim*wordBytes]
			for i := range out {
				out[i] += scramble(binary.LittleEndian.Uint64(row[i*wordBytes:]) + keys[i] + step)
			}
			at += m.tokenStride
		}
	}
}

// layout is what the rank's record says of this memory.
func (m *cache) layout(heads int) metadata.Layout {
	where := m.memory.where()
	l := metadata.Layout{
		BlockTokens: m.tokens, Physical: 1, Heads: heads, HeadBytes: m.dim * wordBytes, Order: m.order, DType: "u64", MemoryType: cmp.Or(where.Type, "dram"),
		Replicated: heads == 1,
	}
	for i := range m.layers.count {
		l.Regions = append(l.Regions, metadata.Region{
			Layer: m.layers.first + i, Planes: planes, Base: where.Base + uint64(i*m.layerStride), Length: uint64(m.layerStride), Device: where.Device, Blocks: m.blocks,
			BlockStride: uint64(m.blockStride), PlaneStride: uint64(m.planeStride),
			HeadStride: uint64(m.headStride), TokenStride: uint64(m.tokenStride),
		})
	}
	return l
}

// clear zeroes ranges of this memory, given by their addresses.
func (m *cache) clear(ranges []kvplane.Range) {
	if len(ranges) == 0 {
		return
	}
	base := m.memory.where().Base
	for _, r := range ranges {
		for at, end := int(r.Local-base), int(r.Local-base+r.Length); at < end; {
			in := at % m.blockStride
			n := min(end-at, m.blockStride-in)
			clear(m.memory.change(at - in)[in : in+n])
			at += n
		}
	}
	m.memory.settle()
}

// swap exchanges two blocks in every layer. Faults use it.
func (m *cache) swap(a, b int32) {
	if a == b {
		return
	}
	tmp := make([]byte, m.blockStride)
	for l := m.layers.first; m.layers.has(l); l++ {
		x, y := m.memory.change(m.block(l, a)), m.memory.change(m.block(l, b))
		copy(tmp, x)
		copy(x, y)
		copy(y, tmp)
		m.memory.settle()
	}
}

// copyBlock overwrites block to with block from in every layer. Faults use it.
func (m *cache) copyBlock(to, from int32) {
	for l := m.layers.first; m.layers.has(l); l++ {
		copy(m.memory.change(m.block(l, to)), m.memory.view(m.block(l, from)))
		m.memory.settle()
	}
}

// flip changes one bit of the words of one head. Faults use it.
func (m *cache) flip(layer int, block int32, plane, head, place, bit int) {
	m.memory.change(m.block(layer, block))[m.at(plane, head, place)+bit/8] ^= 1 << (bit % 8)
	m.memory.settle()
}
