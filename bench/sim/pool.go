package sim

import "container/list"

// kvPool is a modelled engine's KV cache, in blocks: those that requests hold, each once however many share it, and full
// blocks of prompts that nobody holds, which stay until they are evicted, the least recently used first.
type kvPool struct {
	blocks int // that there are
	used   int // that requests hold
	known  map[uint64]*kvBlock
	idle   *list.List // of *kvBlock, the next to be evicted in front

	changes int // grows with whatever may let a request have blocks that had too few before
}

// kvBlock is a full block of a prompt, known by a hash over all tokens up to its end.
type kvBlock struct {
	hash uint64
	held int           // by how many requests
	at   *list.Element // in idle, if by none
}

// kvHeld is what one request holds: the blocks of its prompt's beginning that others can find, and a number of others.
type kvHeld struct {
	shared []*kvBlock
	own    int
}

func newKVPool(blocks int) *kvPool {
	return &kvPool{blocks: blocks, known: map[uint64]*kvBlock{}, idle: list.New()}
}

// take gives a request all blocks that it will ever need, among them those of its prompt that are known already. It reports
// false, and takes none, if there are too few.
func (p *kvPool) take(prompt []uint64, need int) (kvHeld, bool) {
	var h kvHeld
	woken := 0
	for _, hash := range prompt {
		b := p.known[hash]
		if b == nil {
			break
		}
		if b.held == 0 {
			woken++
		}
		h.shared = append(h.shared, b)
	}
	h.own = need - len(h.shared)
	if p.used+woken+h.own > p.blocks {
		return kvHeld{}, false
	}
	for _, b := range h.shared {
		p.hold(b)
	}
	p.used += h.own
	for p.used+p.idle.Len() > p.blocks {
		oldest := p.idle.Remove(p.idle.Front()).(*kvBlock)
		delete(p.known, oldest.hash)
	}
	return h, true
}

// hold takes part in a known block.
func (p *kvPool) hold(b *kvBlock) {
	if b.held++; b.held == 1 {
		p.idle.Remove(b.at)
		p.used++
	}
}

// remember lets later requests find the first n blocks of a prompt, which its request now has in memory.
func (p *kvPool) remember(h *kvHeld, prompt []uint64, n int) {
	p.changes++
	for len(h.shared) < n {
		hash := prompt[len(h.shared)]
		b := p.known[hash]
		h.own--
		if b != nil { // another has computed the same meanwhile: one of the two is enough
			p.used--
			p.hold(b)
		} else {
			b = &kvBlock{hash: hash, held: 1}
			p.known[hash] = b
		}
		h.shared = append(h.shared, b)
	}
}

// release gives back what a request holds. The end of a prompt is evicted before its beginning, which more prompts share.
func (p *kvPool) release(h *kvHeld) {
	p.changes++
	p.used -= h.own
	for i := len(h.shared) - 1; i >= 0; i-- {
		b := h.shared[i]
		if b.held--; b.held == 0 {
			p.used--
			b.at = p.idle.PushBack(b)
		}
	}
	*h = kvHeld{}
}
