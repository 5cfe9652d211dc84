// Package prefixes remembers which engine was given which beginnings of prompts, and so what its prefix cache is thought to hold. It
// knows no engine, no prompt and no time: a prompt is a chain of hashes, an engine a Holder. Its memory is bounded; what was not asked
// for the longest is forgotten first. Of a holder whose capacity is known, what would not fit into its cache is forgotten too, as an engine
// evicts blocks (cache.go). Package router/fleet asks it when it selects engines for a request whose policy looks at prefixes, and
// tells it which engine gets the prompt, from any goroutine.
package prefixes

import (
	"hash/maphash"
	"math/bits"
	"sync"
)

// Index is what engines are thought to have. New makes one. It is safe for concurrent use.
type Index struct {
	seed  maphash.Seed
	bound int

	mu      sync.Mutex
	links   []entry  // from 1 on; 0 is the ring's place where the newest and the oldest meet, and "none" in a bucket
	buckets []uint32 // the first link of each
	has     []uint64 // words for each link: a bit for each holder that has it
	words   int
	caches  []*cache // of each holder; nil: its capacity is not known
	nodes   int      // of all caches
	live    []uint64 // a bit for each holder that there is
	dirty   []uint64 // a bit for each that there was: links may have its bit still
	room    []uint64 // of Find
	stats   Stats
}

// entry is a link of one or more chains. Whoever has a link has all before it, and those were asked for at least as recently, so a
// chain is forgotten from its end.
type entry struct {
	hash         uint64
	next         uint32 // in its bucket
	older, newer uint32
}

// Holder is one run of an engine. It is the number of a bit, and used again for another when the run has left.
type Holder uint32

// Stats are the index's size and what became of what was looked for.
type Stats struct {
	Links   int    // that are remembered
	Bound   int    // that may be
	Bytes   int    // of memory, whether it was touched or not; of caches, what they use
	Looked  uint64 // links that were looked for
	Known   uint64 // of these, links that some engine had
	Evicted uint64 // links that were forgotten to make room
}

// New returns an index of at most so many links, one at least. Each takes 24 bytes, 4 to 8 in the table of hashes, and 8 for each 64
// engines or part of that: 36 to 40 with up to 64 engines. Each takes 40 more for each holder of known capacity that has it, mostNodes of them at
// most. That is all the memory that it ever takes.
func New(bound int) *Index {
	bound = min(max(bound, 1), 1<<31)
	buckets := 1 << bits.Len(uint(bound-1))
	return &Index{
		seed: maphash.MakeSeed(), bound: bound,
		links: make([]entry, 1, bound+1), buckets: make([]uint32, buckets),
		has: make([]uint64, bound+1), words: 1, caches: make([]*cache, 64), live: make([]uint64, 1), dirty: make([]uint64, 1), room: make([]uint64, 1),
	}
}

// Bound is how many links the index may hold.
func (x *Index) Bound() int { return x.bound }

// Join returns a holder that has nothing. Its cache has room for so many tokens; 0: that is not known.
func (x *Index) Join(capacity int) Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	h, ok := x.unused()
	if !ok {
		x.clean()
		if h, ok = x.unused(); !ok {
			x.grow()
			h, _ = x.unused()
		}
	}
	set(x.live, h)
	if capacity > 0 {
		x.caches[h] = newCache(capacity)
	}
	return h
}

// Leave forgets all that a holder has. It costs nothing: its bits are cleared all at once with those of others, when there are no unused
// ones left. It must not be called twice for what Join has returned once.
func (x *Index) Leave(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !in(x.live, h) {
		return
	}
	x.live[h/64] &^= 1 << (h % 64)
	set(x.dirty, h)
	if c := x.caches[h]; c != nil {
		x.nodes -= c.len()
		x.caches[h] = nil
	}
}

// Has appends a word for each 64 holders to dst: a bit for each holder that has the link, which is the end of a prompt (Prompt.Ends).
func (x *Index) Has(hash uint64, dst []uint64) []uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if at := x.find(hash); at != 0 {
		return append(dst, x.of(at)...)
	}
	return dst
}

// Find returns how many links of a chain, from its first, each holder has, in pieces, which it grows to the highest holder that there
// is. It takes the time of the links that any holder has, and of one more.
func (x *Index) Find(chain []uint64, pieces []int32) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	for need := 64 * x.words; len(pieces) < need; {
		pieces = append(pieces, 0)
	}
	clear(pieces)
	with := x.room // those that have all links so far
	copy(with, x.live)
	n := int32(0)
	for _, hash := range chain {
		at := x.find(hash)
		if at == 0 {
			break
		}
		any := uint64(0)
		for w, has := range x.of(at) {
			for gone := with[w] &^ has; gone != 0; gone &= gone - 1 {
				pieces[64*w+bits.TrailingZeros64(gone)] = n
			}
			with[w] &= has
			any |= with[w]
		}
		if any == 0 {
			clear(with)
			break
		}
		n++
	}
	for w, has := range with {
		for ; has != 0; has &= has - 1 {
			pieces[64*w+bits.TrailingZeros64(has)] = n
		}
	}
	x.stats.Looked += uint64(len(chain))
	x.stats.Known += uint64(n)
	return pieces
}

// Prompt is what a holder has of a prompt, or of that and its answer.
type Prompt struct {
	Links []uint64 // its chain
	Rate  float64  // tokens of a byte
	Ends  []End    // what follows the links, in this order
}

// End is a link that stands for something of any length: the rest of a prompt, or an answer.
type End struct {
	Hash   uint64
	Tokens int
}

// Note has a holder have a prompt, as from now on it is thought to. A holder that has left has nothing. It returns what Undo needs.
func (x *Index) Note(p *Prompt, h Holder) (stamp uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !in(x.live, h) {
		return 0
	}
	c := x.caches[h]
	if c != nil {
		c.clock++
		stamp = c.clock
	}
	chain := p.Links[:min(len(p.Links), x.bound)]
	if len(chain) > 0 { // else it would be more ends than prompts
		for i := len(p.Ends) - 1; i >= 0; i-- {
			x.note(p.Ends[i].Hash, h, c, p.Ends[i].Tokens)
		}
	}
	for i := len(chain) - 1; i >= 0; i-- { // so that of a chain the first link is the newest
		x.note(chain[i], h, c, int(p.Rate*float64(pieceAt(i))+.5))
	}
	return stamp
}

// Reserved is room in a holder's cache for a prompt that its engine is to be handed. The zero value is none.
type Reserved struct {
	cache  *cache
	tokens int
}

// Reserve has a holder's cache have room for so many tokens less, until Return.
func (x *Index) Reserve(h Holder, tokens int) Reserved {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.caches[h]
	if c == nil || !in(x.live, h) || tokens <= 0 {
		return Reserved{}
	}
	c.capacity -= tokens
	x.fit(h, c)
	return Reserved{c, tokens}
}

// Return gives back what was reserved. It must not be called twice.
func (x *Index) Return(r Reserved) {
	if r.cache == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	r.cache.capacity += r.tokens
}

// note has a holder have a link, and makes it the newest.
func (x *Index) note(hash uint64, h Holder, c *cache, tokens int) {
	at := x.find(hash)
	if at == 0 {
		at = x.add(hash)
	} else if x.links[0].older != at {
		x.unring(at)
		x.ring(at)
	}
	set(x.of(at), h)
	if c == nil {
		return
	}
	if c.use(at, tokens) {
		x.nodes++
	}
	x.fit(h, c)
}

// fit has a holder lose what its cache has no room for.
func (x *Index) fit(h Holder, c *cache) {
	for c.len() > 1 && (c.used > c.capacity || x.nodes > mostNodes*x.bound) {
		x.lose(c.oldest(), h, c)
	}
}

// lose has a holder have a link no more.
func (x *Index) lose(at uint32, h Holder, c *cache) {
	x.of(at)[h/64] &^= 1 << (h % 64)
	if c != nil && c.remove(at) {
		x.nodes--
	}
}

// Undo takes back of what Note has noted, with that stamp, the ends and all links from the one with this index: the holder did not get them after
// all. What was noted again since stays, but for a holder whose capacity is not known, as it is not known then.
func (x *Index) Undo(p *Prompt, from int, h Holder, stamp uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !in(x.live, h) {
		return
	}
	c := x.caches[h]
	undo := func(hash uint64) {
		if at := x.find(hash); at != 0 && (c == nil || c.stampOf(at) == stamp) {
			x.lose(at, h, c)
		}
	}
	for _, hash := range p.Links[min(from, len(p.Links)):] {
		undo(hash)
	}
	for _, e := range p.Ends {
		undo(e.Hash)
	}
}

// Drop has a holder have a link no more, as others stand for it.
func (x *Index) Drop(hash uint64, h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if at := x.find(hash); at != 0 && in(x.live, h) {
		x.lose(at, h, x.caches[h])
	}
}

// Stats are those of now.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Links, s.Bound = len(x.links)-1, x.bound
	s.Bytes = cap(x.links)*24 + len(x.buckets)*4 + len(x.has)*8 + x.nodes*nodeBytes
	return s
}

// of are the bits of a link.
func (x *Index) of(at uint32) []uint64 {
	from := int(at) * x.words
	return x.has[from : from+x.words : from+x.words]
}

// bucket is where links with the hash begin.
func (x *Index) bucket(hash uint64) *uint32 { return &x.buckets[hash&uint64(len(x.buckets)-1)] }

// find returns the link with the hash, 0 if it is not known.
func (x *Index) find(hash uint64) uint32 {
	at := *x.bucket(hash)
	for at != 0 && x.links[at].hash != hash {
		at = x.links[at].next
	}
	return at
}

// add makes a link that nobody has, in the place of the oldest if there is no other.
func (x *Index) add(hash uint64) uint32 {
	at := uint32(len(x.links))
	if len(x.links) <= x.bound {
		x.links = append(x.links, entry{})
	} else {
		at = x.links[0].newer
		x.unring(at)
		from := x.bucket(x.links[at].hash)
		for *from != at {
			from = &x.links[*from].next
		}
		*from = x.links[at].next
		x.forget(at)
		x.stats.Evicted++
	}
	first := x.bucket(hash)
	x.links[at].hash, x.links[at].next = hash, *first
	*first = at
	x.ring(at)
	return at
}

// forget has no holder have a link.
func (x *Index) forget(at uint32) {
	for w, has := range x.of(at) {
		for ; has != 0; has &= has - 1 {
			if c := x.caches[64*w+bits.TrailingZeros64(has)]; c != nil && c.remove(at) {
				x.nodes--
			}
		}
	}
	clear(x.of(at))
}

// ring makes a link the newest.
func (x *Index) ring(at uint32) {
	newest := x.links[0].older
	x.links[at].older, x.links[at].newer = newest, 0
	x.links[newest].newer, x.links[0].older = at, at
}

// unring takes a link out of the ring.
func (x *Index) unring(at uint32) {
	e := x.links[at]
	x.links[e.older].newer, x.links[e.newer].older = e.newer, e.older
}

// unused returns a holder that no link knows.
func (x *Index) unused() (Holder, bool) {
	for w := range x.live {
		if free := ^(x.live[w] | x.dirty[w]); free != 0 {
			return Holder(64*w + bits.TrailingZeros64(free)), true
		}
	}
	return 0, false
}

// clean clears the bits of those that have left: about a millisecond a million links, once in 64 restarts.
func (x *Index) clean() {
	for at := range x.links {
		for w, bits := range x.of(uint32(at)) {
			x.has[at*x.words+w] = bits & x.live[w]
		}
	}
	clear(x.dirty)
}

// grow makes room for 64 more holders.
func (x *Index) grow() {
	has := make([]uint64, (x.bound+1)*(x.words+1))
	for at := range x.links {
		copy(has[at*(x.words+1):], x.of(uint32(at)))
	}
	x.has, x.words = has, x.words+1
	x.live, x.dirty, x.room = append(x.live, 0), append(x.dirty, 0), append(x.room, 0)
	x.caches = append(x.caches, make([]*cache, 64)...)
}

func set(words []uint64, h Holder) { words[h/64] |= 1 << (h % 64) }

// In reports whether a holder's bit is among those that Has has appended.
func In(words []uint64, h Holder) bool { return in(words, h) }

func in(words []uint64, h Holder) bool { return int(h/64) < len(words) && words[h/64]>>(h%64)&1 == 1 }
