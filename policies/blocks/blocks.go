// Package blocks remembers which engine holds which blocks of KV, as engines themselves report it, and so how many leading tokens of a
// prompt each of them has cached. It knows no engine, no wire format and no time: an engine, or a data-parallel rank of one, is a Holder.
//
// What a block is is told by its content alone: the tokens in it, all before it, and the model, adapter and salt that they are for. An
// engine's own hash of a block cannot be computed elsewhere in practice, so it is only a handle by which the engine names the block later.
// See content.go.
//
// Engines of different block sizes share nothing, not even for equal tokens: an engine reuses whole blocks of its own size, so only that
// size tells exactly what it would reuse. Each size is a chain of its own, and Find makes one for each size that there is, which is one in
// most fleets.
//
// Its memory is bounded. Past the bound no more blocks are taken until engines have removed some: the index then knows less than engines
// have, and never more.
package blocks

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
)

// Tier is where a block is.
type Tier uint8

// The tiers, from the fastest.
const (
	Device Tier = iota // memory of the accelerator
	Host               // memory of the machine
	Disk               // disks and remote stores
	tiers
)

// maxSizes bounds the block sizes that there are at once: Find makes a chain for each.
const maxSizes = 8

// Index is what engines hold. New makes one. It is safe for concurrent use, but for calls about one Holder, which must come one after the
// other.
type Index struct {
	seed   maphash.Seed
	secret [4]uint64

	mu      sync.RWMutex
	bound   int
	size    int      // holdings: blocks of all holders and tiers
	places  []place  // from 1 on; 0 is no block
	buckets []uint32 // the first place of each, by content; as many as a power of two
	has     []uint64 // for each place words times tiers: a bit for each holder that has the block in this tier
	unused  []uint32 // places; the last is used next
	words   int
	shown   []uint64  // a bit for each holder that Find tells of
	partial []uint64  // a bit for each holder of whose blocks some were left out lately
	holders []*holder // by number; nil: unused
	sizes   []int     // block sizes of all holders
}

// place is where a block stands.
type place struct {
	content uint64 // 0: no block is there
	next    uint32 // in its bucket
	child   uint32 // of the blocks that follow this one in prompts, the one stored last; only a place to look first
}

// holder is what is known of one Holder.
type holder struct {
	handles map[uint64]holding // by the engine's hash, tier and group
	more    map[uint64]uint32  // how many handles beyond the first a block has in a tier, where it has several
	sizes   []int              // of blocks that begin prompts
	stats   HolderStats
	taken   int // blocks since one was left out, if the holder is partial
}

// holding is what a handle stands for.
type holding struct {
	at    uint32 // its place
	times uint32 // how often it was stored and not removed: an engine may have the same block twice
}

// Holder is one run of one engine or data-parallel rank. It is the number of a bit, and used again for another when the run has left.
type Holder uint32

// HolderStats is what one holder has, and what became of what was stored for it.
type HolderStats struct {
	Blocks  int    // that it has, each counted once for every tier and group
	Orphans uint64 // blocks that were not taken as the index does not know the block before them
	Refused uint64 // blocks that were not taken as there is no room, or as they are not what an engine says
}

// New returns an index that takes bound blocks, one at least, each counted for every holder and tier that has it. It takes up to 100 bytes
// for each block that it has, and no memory for those that it may have. See TestMemory.
func New(bound int) *Index {
	x := &Index{seed: maphash.MakeSeed(), words: 1, places: make([]place, 1), has: make([]uint64, tiers), shown: make([]uint64, 1), partial: make([]uint64, 1), holders: make([]*holder, 64)}
	x.SetBound(bound)
	for i := range x.secret {
		x.secret[i] = rand.Uint64() | 1
	}
	return x
}

// SetBound changes how many blocks the index takes. What it has beyond that stays.
func (x *Index) SetBound(bound int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.bound
	if x.bound = min(max(bound, 1), 1<<31); x.bound != was && x.buckets != nil { // the first Join makes them
		x.makeBuckets()
	}
}

func (x *Index) makeBuckets() {
	x.buckets = make([]uint32, 1<<bits.Len(uint(x.bound-1)))
	for at := 1; at < len(x.places); at++ {
		if x.places[at].content != 0 {
			x.enter(uint32(at))
		}
	}
}

// bucket is where places with the content begin.
func (x *Index) bucket(content uint64) *uint32 {
	return &x.buckets[content&uint64(len(x.buckets)-1)]
}

// enter puts a place into its bucket.
func (x *Index) enter(at uint32) {
	first := x.bucket(x.places[at].content)
	x.places[at].next, *first = *first, at
}

// at returns the place of the block with the content; 0 if there is none.
func (x *Index) at(content uint64) uint32 {
	at := *x.bucket(content)
	for at != 0 && x.places[at].content != content {
		at = x.places[at].next
	}
	return at
}

// Join returns a holder that has nothing, and that Find does not tell of until Show.
func (x *Index) Join() Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.buckets == nil {
		x.makeBuckets()
	}
	h := slices.Index(x.holders, nil)
	if h < 0 {
		h = len(x.holders)
		x.grow()
	}
	x.holders[h] = newHolder()
	return Holder(h)
}

func newHolder() *holder { return &holder{handles: map[uint64]holding{}, more: map[uint64]uint32{}} }

// grow makes room for 64 more holders.
func (x *Index) grow() {
	wide := make([]uint64, len(x.places)*(x.words+1)*int(tiers))
	for at := range x.places {
		copy(wide[at*(x.words+1)*int(tiers):], x.of(uint32(at)))
	}
	x.has, x.words = wide, x.words+1
	x.shown, x.partial = append(x.shown, 0), append(x.partial, 0)
	x.holders = append(x.holders, make([]*holder, 64)...)
}

// Show has Find tell of the holder, or not: of one whose reports do not come, nothing is certain.
func (x *Index) Show(h Holder, shown bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.shown[h/64] &^= 1 << (h % 64); shown {
		x.shown[h/64] |= 1 << (h % 64)
	}
}

// Leave forgets all that the holder has. It must not be used any more.
func (x *Index) Leave(h Holder) {
	x.Clear(h)
	x.Show(h, false)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.holders[h] = nil
}

// atOnce is how many blocks are taken or dropped while others wait: about 0.2 ms.
const atOnce = 1000

// letIn lets others in after each atOnce blocks of an event; i counts them from 0. It gives the lock up, so what was read before may have changed,
// but for what the event's holder has: of one holder there is one event at a time.
func (x *Index) letIn(i int) {
	if i%atOnce == atOnce-1 {
		x.mu.Unlock()
		x.mu.Lock()
	}
}

// Clear forgets all that the holder has, in any tier.
func (x *Index) Clear(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.holders[h]
	x.holders[h] = newHolder()
	x.holders[h].stats = HolderStats{Orphans: was.stats.Orphans, Refused: was.stats.Refused}
	x.partial[h/64] &^= 1 << (h % 64)
	shown := x.shown[h/64]
	x.shown[h/64] &^= 1 << (h % 64)
	x.countSizes()
	n := 0
	for _, held := range was.handles {
		x.letIn(n)
		x.drop(h, held.at, Device, Host, Disk)
		n++
	}
	x.size -= n
	x.shown[h/64] |= shown & (1 << (h % 64))
}

// countSizes notes which block sizes there are.
func (x *Index) countSizes() {
	x.sizes = x.sizes[:0]
	for _, hd := range x.holders {
		if hd == nil {
			continue
		}
		for _, s := range hd.sizes {
			if !slices.Contains(x.sizes, s) {
				x.sizes = append(x.sizes, s)
			}
		}
	}
}

// Stats returns what the holder has; nothing of one that has left.
func (x *Index) Stats(h Holder) HolderStats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	hd := x.holders[h]
	if hd == nil {
		return HolderStats{}
	}
	s := hd.stats
	s.Blocks = len(hd.handles)
	return s
}

// Size returns how many blocks there are, each counted for every holder and tier that has it, and how many there may be.
func (x *Index) Size() (blocks, bound int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.size, x.bound
}

// of are the bits of a place: for each 64 holders a word of each tier.
func (x *Index) of(at uint32) []uint64 {
	from := int(at) * x.words * int(tiers)
	return x.has[from : from+x.words*int(tiers) : from+x.words*int(tiers)]
}

// bit is where a holder's bit of a tier is within the bits of a place.
func (h Holder) bit(t Tier) (word int, bit uint64) {
	return int(h/64)*int(tiers) + int(t), 1 << (h % 64)
}

// take gives the holder the block with this content, which may be new, and returns its place.
func (x *Index) take(h Holder, t Tier, content uint64) uint32 {
	at := x.at(content)
	if at == 0 {
		if n := len(x.unused); n > 0 {
			at, x.unused = x.unused[n-1], x.unused[:n-1]
			x.places[at] = place{content: content}
		} else {
			at = uint32(len(x.places))
			x.places = append(roomFor(x.places, 1), place{content: content})
			x.has = roomFor(x.has, x.words*int(tiers))
			x.has = x.has[:len(x.has)+x.words*int(tiers)]
		}
		x.enter(at)
	}
	x.give(h, t, at)
	return at
}

// roomFor returns s with room for n more, which is zero. It grows by a sixteenth, where append grows by a quarter or more: of a million blocks
// that is up to 10 MB.
func roomFor[T any](s []T, n int) []T {
	if len(s)+n <= cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)+n+max(1024, len(s)/16)), s...)
}

// give gives the holder a block that there is.
func (x *Index) give(h Holder, t Tier, at uint32) {
	word, bit := h.bit(t)
	if has := x.of(at); has[word]&bit == 0 {
		has[word] |= bit
	} else {
		x.holders[h].more[several(at, t)]++
	}
}

// lose takes a block in one tier from the holder, unless it has it by another handle too.
func (x *Index) lose(h Holder, t Tier, at uint32) {
	more, key := x.holders[h].more, several(at, t)
	switch n := more[key]; n {
	case 0:
		x.drop(h, at, t)
	case 1:
		delete(more, key)
	default:
		more[key] = n - 1
	}
}

// several is the key of a block in one tier in holder.more.
func several(at uint32, t Tier) uint64 { return uint64(at)<<2 | uint64(t) }

// drop takes a block in these tiers from the holder, and forgets it if no holder is left. It does nothing if the holder does not have it.
func (x *Index) drop(h Holder, at uint32, from ...Tier) {
	has, had := x.of(at), false
	for _, t := range from {
		word, bit := h.bit(t)
		had = had || has[word]&bit != 0
		has[word] &^= bit
	}
	if !had || slices.ContainsFunc(has, func(w uint64) bool { return w != 0 }) {
		return
	}
	in := x.bucket(x.places[at].content)
	for *in != at {
		in = &x.places[*in].next
	}
	*in = x.places[at].next
	x.places[at] = place{}
	x.unused = append(x.unused, at)
}
