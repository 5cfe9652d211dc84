package blocks

import "math/bits"

// Prompt is what is looked for.
type Prompt struct {
	Model, LoRA, Salt string // LoRA: the name of the adapter; "" for none, as with Salt
	Tokens            []uint32
}

// Held is how many leading tokens of a prompt a holder has: those that it has in a tier or a faster one, for each tier. Held[Device] is what
// costs it nothing, Held[Disk] all that it has to compute no more.
type Held [tiers]int32

// Found is what Find has found. The zero value is ready, and keeps its memory for the next call. It is not safe for concurrent use.
type Found struct {
	held []Held
	with []uint64 // holders that have all so far: for each 64 a word of each tier

	partial []uint64 // a bit for each holder
}

// Of returns what a holder has of the prompt.
func (f *Found) Of(h Holder) Held {
	if int(h) >= len(f.held) {
		return Held{}
	}
	return f.held[h]
}

// Partial reports whether the holder may have more of the prompt: some of its blocks were left out lately, as a block before them was not known or
// there was no room.
func (f *Found) Partial(h Holder) bool {
	return int(h/64) < len(f.partial) && f.partial[h/64]>>(h%64)&1 == 1
}

// Find looks for a prompt. An engine never takes the last token of a prompt from its cache, so of a prompt that ends with a block it reuses
// one block less than it has. It allocates nothing if f has the room. It is safe for concurrent use.
func (x *Index) Find(p *Prompt, f *Found) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for len(f.held) < len(x.holders) {
		f.held = append(f.held, Held{})
	}
	clear(f.held)
	f.partial = append(f.partial[:0], x.partial...)
	for len(f.with) < x.words*int(tiers) {
		f.with = append(f.with, 0)
	}
	for _, size := range x.sizes {
		x.walk(p, size, f)
	}
}

// walk looks for a prompt in blocks of one size.
func (x *Index) walk(p *Prompt, size int, f *Found) {
	with := f.with[:x.words*int(tiers)]
	for w, shown := range x.shown {
		for t := range int(tiers) {
			with[w*int(tiers)+t] = shown
		}
	}
	content, at, n := x.root(size, p.Model, p.LoRA, p.Salt), uint32(0), 0
	for tokens := p.Tokens; len(tokens) >= size; tokens = tokens[size:] {
		content = x.next(content, tokens[:size])
		if at = x.after(at, content); at == 0 {
			break
		}
		n++
		if x.words == 1 && with[Disk] != 0 && !lack((*[tiers]uint64)(with), (*[tiers]uint64)(x.of(at))) {
			continue // with up to 64 holders most steps end here, in a third of the time
		}
		if !f.keep(with, x.of(at), int32((n-1)*size)) {
			clear(with)
			break
		}
	}
	for i, of := range with {
		f.note(i, of, int32(n*size))
	}
}

// after returns the place of the block with the content, which follows the block at that place; 0 if there is none. Blocks that were stored
// together often stand side by side.
func (x *Index) after(at uint32, content uint64) uint32 {
	if next := int(at) + 1; next < len(x.places) && x.places[next].content == content {
		return uint32(next)
	}
	if child := x.places[at].child; x.places[child].content == content {
		return child
	}
	return x.at(content)
}

// lack reports whether some of 64 holders that have all so far do not have the next block, in a tier or a faster one.
func lack(with, has *[tiers]uint64) bool {
	device := has[Device]
	host := device | has[Host]
	return with[Device]&^device|with[Host]&^host|with[Disk]&^(host|has[Disk]) != 0
}

// keep leaves in with those that have the next block too, and notes that the others have tokens so many. It reports whether any is left.
func (f *Found) keep(with, has []uint64, tokens int32) (left bool) {
	for i := 0; i < len(with); i += int(tiers) {
		with, has := (*[tiers]uint64)(with[i:]), (*[tiers]uint64)(has[i:])
		if lack(with, has) {
			had := uint64(0)
			for t := range tiers {
				had |= has[t]
				f.note(i+int(t), with[t]&^had, tokens)
				with[t] &= had
			}
		}
		left = left || with[Disk] != 0 // who has it in any tier
	}
	return left
}

// note notes how many tokens the holders of word i have in its tier, unless they have more in blocks of another size.
func (f *Found) note(i int, of uint64, tokens int32) {
	w, t := i/int(tiers), i%int(tiers)
	for ; of != 0; of &= of - 1 {
		held := &f.held[64*w+bits.TrailingZeros64(of)]
		held[t] = max(held[t], tokens)
	}
}
