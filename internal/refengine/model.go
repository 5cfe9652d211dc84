package refengine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Shape is what two engines must share to answer alike. Everything else (ranks, blocks, layouts) is how an engine
// keeps it.
type Shape struct {
	Seed    uint64 // of every weight; default 1
	Layers  int    // default 4
	Heads   int    // KV heads; default 4
	HeadDim int    // 8-byte words of one head of one token of one plane; default 4
}

// width is the number of words of a hidden state.
const width = 8

// hidden is the state of one token between two layers.
type hidden [width]uint64

// The planes of the KV cache, and the projections of a hidden state.
const (
	planeK = iota
	planeV
	planes
	projectionQ = planes
)

// Model is a transformer in integer arithmetic modulo 2^64: sums do not depend on their order, so neither do answers
// on how ranks share the heads. Attention is linear: each stored word passes a bijective mixer keyed by its plane,
// layer, head, place and position, the mixed words are summed over the positions, and odd multipliers carry the sums
// on. A word that differs in one bit therefore always changes the next hidden state. Safe for concurrent use.
type Model struct {
	shape   Shape
	project [][]uint64 // [layer] (plane or Q, head, word, i): hidden to K, V, Q
	output  [][]uint64 // [layer] (head, word, i): attention to hidden
	key     [][]uint64 // [layer] (plane, head, word): what the mixer adds
	feed    []hidden   // [layer]
	mix     []hidden   // [layer]
}

// NewModel computes the weights of a shape.
func NewModel(s Shape) *Model {
	m := &Model{shape: s}
	words := s.Heads * s.HeadDim
	g := generator(scramble(s.Seed + 0x9e3779b97f4a7c15))
	for range s.Layers {
		m.project = append(m.project, g.odd(3*words*width))
		m.output = append(m.output, g.odd(words*width))
		m.key = append(m.key, g.odd(planes*words))
		m.feed = append(m.feed, hidden(g.odd(width)))
		m.mix = append(m.mix, hidden(g.odd(width)))
	}
	return m
}

// Compatibility is the digest that engines of one shape publish.
func (s Shape) Compatibility() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "refengine 1 seed %d layers %d heads %d head_dim %d u64 kvplane", s.Seed, s.Layers, s.Heads, s.HeadDim))
	return hex.EncodeToString(sum[:16])
}

// embed is the state of a token at a position before the first layer.
func (m *Model) embed(token int32, position int) hidden {
	x := scramble(m.shape.Seed ^ scramble(uint64(uint32(token))+1))
	x = scramble(x + uint64(position)*positionStep)
	var h hidden
	for i := range h {
		x += 0x9e3779b97f4a7c15
		h[i] = scramble(x)
	}
	return h
}

// projectTo computes the words of one head from a state: its K, its V (what the cache stores) or its query.
func (m *Model) projectTo(out []uint64, layer, projection, head int, h *hidden) {
	d := m.shape.HeadDim
	w := m.project[layer][(projection*m.shape.Heads+head)*d*width:]
	for i := range out {
		row := w[i*width : i*width+width]
		var s uint64
		for j, x := range h {
			s += row[j] * x
		}
		out[i] = s
	}
}

// positionStep keeps the mixer's keys of two positions apart. Odd, so that no two positions share a key.
const positionStep = 0xd1342543de82ef95

// keys are the mixer's keys of one head of one plane, one per word. Position t adds t·positionStep.
func (m *Model) keys(layer, plane, head int) []uint64 {
	d := m.shape.HeadDim
	at := (plane*m.shape.Heads + head) * d
	return m.key[layer][at : at+d]
}

// attend adds one head's answer to out: sums are the mixed words of each plane over all positions that query sees.
func (m *Model) attend(out *hidden, layer, head int, query, sumK, sumV []uint64) {
	d := m.shape.HeadDim
	w := m.output[layer][head*d*width:]
	for i := range query {
		a := sumK[i]*(query[i]|1) + sumV[i]
		row := w[i*width : i*width+width]
		for j := range out {
			out[j] += row[j] * a
		}
	}
}

// next is the state after a layer, from the state before it and the sum of all heads' answers.
func (m *Model) next(layer int, h, attention *hidden) hidden {
	var sum uint64
	var out hidden
	for i := range out {
		out[i] = h[i] + attention[i]
		sum += m.mix[layer][i] * out[i]
	}
	for i := range out {
		out[i] = scramble(out[i] + m.feed[layer][i]*sum)
	}
	return out
}

// pick is the greedy choice of the next token. The end of the text is chosen once in 256 states, never if it is not allowed.
func (m *Model) pick(h *hidden, mayEnd bool) int32 {
	x := m.shape.Seed
	for i := range h {
		x = scramble(x + h[i])
	}
	if mayEnd && x>>56 == 0 {
		return tokenEnd
	}
	return int32(alphabet[x%uint64(len(alphabet))])
}

// scramble is a bijection of 64 bits in which each bit of the argument moves about half of the result's.
func scramble(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return x
}

// generator yields the weights of a model, in an order that is part of the model.
type generator uint64

// odd returns n odd words. Multiplying by an odd word loses nothing modulo 2^64.
func (g *generator) odd(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		*g += 0x9e3779b97f4a7c15
		out[i] = scramble(uint64(*g)) | 1
	}
	return out
}
