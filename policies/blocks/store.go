package blocks

import "slices"

// Blocks is a run of blocks of one prompt that a holder has.
type Blocks struct {
	Handles   []uint64 // the engine's name of each block
	Parent    uint64   // the name of the block before the first one
	HasParent bool     // false: the first block begins a prompt
	// Tokens are those of all blocks, Size for each. None: the holder has blocks that it already has in this tier too.
	Tokens []uint32
	Size   int
	Extra  [][]byte // what besides tokens makes each block what it is; nil: nothing
	Tier   Tier
	Group  int // of the engine's KV cache; a block is had by a holder if it has it in any group

	// What the prompt is for. Only a block that begins a prompt says it; others are of their parent's.
	Model, LoRA, Salt string
}

// maxBlockTokens bounds the size of a block.
const maxBlockTokens = 1 << 16

// Store notes that the holder has these blocks. A block whose parent the index does not know for this holder and group is an orphan: what
// it is cannot be known, so it is counted and left out. To store a block again counts, as an engine may have it twice.
func (x *Index) Store(h Holder, b *Blocks) {
	x.mu.Lock()
	defer x.mu.Unlock()
	hd := x.holders[h]
	if len(b.Tokens) == 0 {
		x.storeTier(h, hd, b)
		return
	}
	if b.Size < 1 || b.Size > maxBlockTokens || len(b.Tokens) != len(b.Handles)*b.Size || b.Extra != nil && len(b.Extra) != len(b.Handles) || b.Tier >= tiers {
		x.leaveOut(h, &hd.stats.Refused, len(b.Handles))
		return
	}
	before, content := uint32(0), uint64(0)
	if b.HasParent {
		if before = x.find(hd, b.Parent, b.Group); before == 0 {
			x.leaveOut(h, &hd.stats.Orphans, len(b.Handles))
			return
		}
		content = x.places[before].content
	} else {
		if !x.noteSize(hd, b.Size) {
			x.leaveOut(h, &hd.stats.Refused, len(b.Handles))
			return
		}
		content = x.root(b.Size, b.Model, b.LoRA, b.Salt)
	}
	for i, name := range b.Handles {
		content = x.next(content, b.Tokens[i*b.Size:(i+1)*b.Size])
		if b.Extra != nil && b.Extra[i] != nil {
			content = x.extra(content, b.Extra[i])
		}
		key := x.handle(name, b.Tier, b.Group)
		held, known := hd.handles[key]
		switch {
		case known && x.places[held.at].content == content:
			held.times++
		case known: // the engine uses the name for another block now
			x.lose(h, b.Tier, held.at)
			held = holding{x.take(h, b.Tier, content), 1}
		case x.size >= x.bound:
			x.leaveOut(h, &hd.stats.Refused, len(b.Handles)-i)
			return
		default:
			x.size++
			held = holding{x.take(h, b.Tier, content), 1}
		}
		hd.handles[key] = held
		if before != 0 {
			x.places[before].child = held.at
		}
		before = held.at
		x.took(h, hd)
		x.letIn(i)
	}
}

// wholeAfter is how many blocks in a row must have been taken until a holder is not partial any more. By then the engine has evicted what was left
// out, as a rule, unless it goes on using it; then blocks after it are left out again.
const wholeAfter = 10_000

// leaveOut notes that so many blocks of the holder are not taken, in a counter of its own.
func (x *Index) leaveOut(h Holder, of *uint64, n int) {
	*of += uint64(n)
	x.holders[h].taken = 0
	x.partial[h/64] |= 1 << (h % 64)
}

// took notes that a block of the holder was taken.
func (x *Index) took(h Holder, hd *holder) {
	if hd.taken++; hd.taken >= wholeAfter {
		x.partial[h/64] &^= 1 << (h % 64)
	}
}

// storeTier notes that the holder has blocks, which it has in some tier, in another one.
func (x *Index) storeTier(h Holder, hd *holder, b *Blocks) {
	for i, name := range b.Handles {
		x.letIn(i)
		at := x.find(hd, name, b.Group)
		if at == 0 {
			x.leaveOut(h, &hd.stats.Orphans, 1)
			continue
		}
		key := x.handle(name, b.Tier, b.Group)
		held, had := hd.handles[key]
		switch {
		case had:
			held.times++
		case b.Tier >= tiers || x.size >= x.bound:
			x.leaveOut(h, &hd.stats.Refused, 1)
			continue
		default:
			x.size++
			x.give(h, b.Tier, at)
			held = holding{at, 1}
		}
		hd.handles[key] = held
	}
}

// find returns the place of the block that the holder names so, in whatever tier it has it; 0 if it is not known.
func (x *Index) find(hd *holder, name uint64, group int) uint32 {
	for t := range tiers {
		if held, known := hd.handles[x.handle(name, t, group)]; known {
			return held.at
		}
	}
	return 0
}

// noteSize notes that the holder has prompts in blocks of this size. It reports false if there are too many sizes already.
func (x *Index) noteSize(hd *holder, size int) bool {
	if slices.Contains(hd.sizes, size) {
		return true
	}
	if !slices.Contains(x.sizes, size) {
		if len(x.sizes) == maxSizes {
			return false
		}
		x.sizes = append(x.sizes, size)
	}
	hd.sizes = append(hd.sizes, size)
	return true
}

// Remove notes that the holder has these blocks of a group no more in a tier, or once less. Names that are not known are of blocks that were
// not taken.
func (x *Index) Remove(h Holder, t Tier, group int, names []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	hd := x.holders[h]
	for i, name := range names {
		x.letIn(i)
		key := x.handle(name, t, group)
		held, known := hd.handles[key]
		switch {
		case !known:
		case held.times > 1:
			held.times--
			hd.handles[key] = held
		default:
			delete(hd.handles, key)
			x.size--
			x.lose(h, t, held.at)
		}
	}
}
