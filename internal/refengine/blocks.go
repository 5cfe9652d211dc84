package refengine

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// blockHash names the contents of a full block: the tokens in it and everything before it.
type blockHash [sha256.Size]byte

// chain returns the hashes of the full blocks of a sequence. Different salts never share a block.
func chain(salt string, tokens []int32, blockTokens int) []blockHash {
	out := make([]blockHash, 0, len(tokens)/blockTokens)
	parent := root(salt)
	for run := range slices.Chunk(tokens, blockTokens) {
		if len(run) < blockTokens {
			break
		}
		parent = follow(parent, run)
		out = append(out, parent)
	}
	return out
}

// root is what the first block of a sequence follows.
func root(salt string) blockHash { return sha256.Sum256([]byte(salt)) }

// follow is the hash of a full block of tokens after the block with the hash parent.
func follow(parent blockHash, tokens []int32) blockHash {
	buf := append(make([]byte, 0, len(parent)+4*len(tokens)), parent[:]...)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	return sha256.Sum256(buf)
}

// pool accounts for every block of an engine; all ranks use the same numbers. A block that nobody refers to is free;
// while it waits to be used again its contents can still be found by their hash. Not safe for concurrent use.
type pool struct {
	refs   []int32
	hash   []blockHash
	hashed []bool
	found  map[blockHash]int32
	// the free blocks, the longest free first: a ring of links whose last element, len(refs), is the sentinel
	after, before []int32
	free          int
}

func newPool(blocks int) *pool {
	p := &pool{
		refs: make([]int32, blocks), hash: make([]blockHash, blocks), hashed: make([]bool, blocks), found: map[blockHash]int32{},
		after: make([]int32, blocks+1), before: make([]int32, blocks+1),
	}
	p.after[blocks], p.before[blocks] = int32(blocks), int32(blocks)
	for b := range blocks {
		p.push(int32(b))
	}
	return p
}

// push makes a block the last of the free ones.
func (p *pool) push(b int32) {
	end := int32(len(p.refs))
	last := p.before[end]
	p.after[last], p.before[b] = b, last
	p.after[b], p.before[end] = end, b
	p.free++
}

// unlink takes a block out of the free ones.
func (p *pool) unlink(b int32) {
	p.after[p.before[b]], p.before[p.after[b]] = p.after[b], p.before[b]
	p.free--
}

// take refers to n free blocks, the longest free first, whose contents are forgotten. ok is false if there are not as many.
func (p *pool) take(n int) (blocks []int32, ok bool) {
	if n > p.free {
		return nil, false
	}
	blocks = make([]int32, 0, n)
	for range n {
		b := p.after[len(p.refs)]
		p.unlink(b)
		p.forget(b)
		p.refs[b] = 1
		blocks = append(blocks, b)
	}
	return blocks, true
}

// match refers to the blocks that hold the longest run of hashes from the first on.
func (p *pool) match(hashes []blockHash) []int32 {
	var out []int32
	for _, h := range hashes {
		b, ok := p.found[h]
		if !ok {
			break
		}
		if p.refs[b] == 0 {
			p.unlink(b)
		}
		p.refs[b]++
		out = append(out, b)
	}
	return out
}

// remember lets later sequences find the contents of a full block. The first block with the same contents stays the one found.
func (p *pool) remember(b int32, h blockHash) {
	if _, ok := p.found[h]; ok || p.hashed[b] {
		return
	}
	p.found[h], p.hash[b], p.hashed[b] = b, h, true
}

// forget makes the contents of a block impossible to find.
func (p *pool) forget(b int32) {
	if p.hashed[b] {
		delete(p.found, p.hash[b])
		p.hashed[b] = false
	}
}

// release gives up one reference to each block. The last ones are freed first, so that the beginnings of
// sequences, which others share more often, stay found longer.
func (p *pool) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		p.refs[b]--
		if p.refs[b] == 0 {
			p.push(b)
		}
	}
}
