package blocks

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// naive is the index as it is described: for each holder what its handles stand for, a content written out.
type naive struct {
	bound   int
	holders map[Holder]*naiveHolder
}

type naiveHolder struct {
	shown   bool
	handles map[naiveKey]naiveHolding
	stats   HolderStats
}

type naiveKey struct {
	name  uint64
	tier  Tier
	group int
}

type naiveHolding struct {
	content string
	times   int
}

func naiveRoot(size int, model, lora, salt string) string {
	return fmt.Sprintf("%d %q %q %q", size, model, lora, salt)
}

func (n *naive) size() (all int) {
	for _, h := range n.holders {
		all += len(h.handles)
	}
	return all
}

func (h *naiveHolder) find(name uint64, group int) (string, bool) {
	for t := range tiers {
		if held, known := h.handles[naiveKey{name, t, group}]; known {
			return held.content, true
		}
	}
	return "", false
}

func (n *naive) store(at Holder, b *Blocks) {
	h := n.holders[at]
	content := naiveRoot(b.Size, b.Model, b.LoRA, b.Salt)
	if b.HasParent && len(b.Tokens) > 0 {
		parent, known := h.find(b.Parent, b.Group)
		if !known {
			h.stats.Orphans += uint64(len(b.Handles))
			return
		}
		content = parent
	}
	for i, name := range b.Handles {
		if len(b.Tokens) > 0 {
			content += fmt.Sprint("/", b.Tokens[i*b.Size:(i+1)*b.Size])
			if b.Extra != nil && b.Extra[i] != nil {
				content += fmt.Sprintf("+%q", b.Extra[i])
			}
		} else {
			known := false
			if content, known = h.find(name, b.Group); !known {
				h.stats.Orphans++
				continue
			}
		}
		key := naiveKey{name, b.Tier, b.Group}
		held, had := h.handles[key]
		switch {
		case had && (held.content == content || len(b.Tokens) == 0):
			h.handles[key] = naiveHolding{held.content, held.times + 1}
		case !had && n.size() >= n.bound:
			if len(b.Tokens) > 0 {
				h.stats.Refused += uint64(len(b.Handles) - i)
				return
			}
			h.stats.Refused++
		default:
			h.handles[key] = naiveHolding{content, 1}
		}
	}
}

func (n *naive) remove(at Holder, t Tier, group int, names []uint64) {
	h := n.holders[at]
	for _, name := range names {
		key := naiveKey{name, t, group}
		if held, known := h.handles[key]; known && held.times > 1 {
			h.handles[key] = naiveHolding{held.content, held.times - 1}
		} else {
			delete(h.handles, key)
		}
	}
}

func (n *naive) held(at Holder, p *Prompt, sizes []int) (out Held) {
	h := n.holders[at]
	if !h.shown {
		return out
	}
	for t := range tiers {
		has := map[string]bool{}
		for key, held := range h.handles {
			if key.tier <= t {
				has[held.content] = true
			}
		}
		for _, size := range sizes {
			content := naiveRoot(size, p.Model, p.LoRA, p.Salt)
			for i := size; i <= len(p.Tokens); i += size {
				if content += fmt.Sprint("/", p.Tokens[i-size:i]); !has[content] {
					break
				}
				out[t] = max(out[t], int32(i))
			}
		}
	}
	return out
}

// entered counts the places in buckets.
func (x *Index) entered() (n int) {
	for _, at := range x.buckets {
		for ; at != 0; at = x.places[at].next {
			n++
		}
	}
	return n
}

// TestIndexAgainstNaive has engines store, remove, clear, come and go at random, and the index say of each what the naive one says.
func TestIndexAgainstNaive(t *testing.T) {
	found := false
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		pick := func(from ...string) string { return from[rng.IntN(len(from))] }
		bound := 20 + rng.IntN(200)
		x, n := New(bound), &naive{bound: bound, holders: map[Holder]*naiveHolder{}}
		sizes := []int{1, 2, 4}
		tokens := func(k int) []uint32 {
			out := make([]uint32, k)
			for i := range out {
				out[i] = uint32(rng.IntN(8) / 7)
			}
			return out
		}
		var f Found
		for step := range 600 {
			var h Holder
			if len(n.holders) > 0 {
				all := slices.Sorted(func(yield func(Holder) bool) {
					for h := range n.holders {
						if !yield(h) {
							return
						}
					}
				})
				h = all[rng.IntN(len(all))]
			}
			switch op := rng.IntN(100); {
			case len(n.holders) == 0 || op < 3 && len(n.holders) < 70:
				h = x.Join()
				x.Show(h, true)
				n.holders[h] = &naiveHolder{shown: true, handles: map[naiveKey]naiveHolding{}}
			case op < 5:
				x.Leave(h)
				delete(n.holders, h)
			case op < 7:
				x.Clear(h)
				n.holders[h].handles = map[naiveKey]naiveHolding{}
			case op < 8:
				n.bound = 20 + rng.IntN(200)
				x.SetBound(n.bound)
			case op < 10:
				shown := rng.IntN(3) > 0
				x.Show(h, shown)
				n.holders[h].shown = shown
			case op < 30:
				tier, group, names := Tier(rng.IntN(3)), rng.IntN(2), []uint64{rng.Uint64N(40), rng.Uint64N(40)}
				x.Remove(h, tier, group, names)
				n.remove(h, tier, group, names)
			default:
				b := &Blocks{Size: sizes[rng.IntN(len(sizes))], Tier: Tier(max(0, rng.IntN(5)-2)), Group: rng.IntN(6) / 5, Model: pick("a", "b"),
					LoRA: pick("", "", "x"), Salt: pick("", "", "x"), Parent: rng.Uint64N(40), HasParent: rng.IntN(2) == 0}
				for range 1 + rng.IntN(4) {
					b.Handles = append(b.Handles, rng.Uint64N(40))
				}
				if op < 90 {
					b.Tokens = tokens(len(b.Handles) * b.Size)
				}
				if op < 35 {
					b.Extra = make([][]byte, len(b.Handles))
					b.Extra[rng.IntN(len(b.Extra))] = []byte("image")
				}
				x.Store(h, b)
				n.store(h, b)
			}
			p := &Prompt{Model: pick("a", "b"), LoRA: pick("", "x"), Salt: pick("", "x"), Tokens: tokens(rng.IntN(20))}
			x.Find(p, &f)
			for h, has := range n.holders {
				got, want := f.Of(h), n.held(h, p, sizes)
				if got != want {
					t.Fatalf("seed %d, step %d: holder %d has %v tokens of %+v; want %v", seed, step, h, got, p, want)
				}
				found = found || want[Device] > 0 && want[Disk] > want[Device]
				has.stats.Blocks = len(has.handles)
				if got := x.Stats(h); got != has.stats {
					t.Fatalf("seed %d, step %d: holder %d: %+v; want %+v", seed, step, h, got, has.stats)
				}
			}
			if got, _ := x.Size(); got != n.size() || x.entered()+len(x.unused)+1 != len(x.places) {
				t.Fatalf("seed %d, step %d: %d blocks, %d entered and %d unused of %d places; want %d blocks", seed, step, got, x.entered(), len(x.unused), len(x.places), n.size())
			}
		}
		for h := range n.holders {
			x.Leave(h)
		}
		if size, _ := x.Size(); size != 0 || x.entered() != 0 || len(x.sizes) != 0 {
			t.Fatalf("seed %d: %d blocks, %d entered, sizes %v after all have left", seed, size, x.entered(), x.sizes)
		}
	}
	if !found {
		t.Error("no walk had tokens in two tiers: the test shows nothing")
	}
}

// index is an index with one holder that is shown.
func index(bound int) (*Index, Holder) {
	x := New(bound)
	h := x.Join()
	x.Show(h, true)
	return x, h
}

// run is a run of n blocks of size tokens, with the names from first on. Its tokens are first, first+1 and so on.
func run(first, n, size int) *Blocks {
	b := &Blocks{Size: size, Model: "m"}
	for i := range n {
		b.Handles = append(b.Handles, uint64(first+i))
		for range size {
			b.Tokens = append(b.Tokens, uint32(first*size+len(b.Tokens)))
		}
	}
	return b
}

// after is a run whose first block follows the block of that name.
func after(parent uint64, b *Blocks) *Blocks {
	b.Parent, b.HasParent = parent, true
	return b
}

func ask(x *Index, h Holder, p Prompt) Held {
	var f Found
	p.Model = "m"
	x.Find(&p, &f)
	return f.Of(h)
}

// TestSaltAndAdapter: a salt and an adapter of the same name are two things, and neither is the other's beginning.
func TestSaltAndAdapter(t *testing.T) {
	x, h := index(100)
	b := run(0, 2, 4)
	b.Salt = "ab"
	x.Store(h, b)
	for _, tt := range []struct {
		lora, salt string
		want       int32
	}{{"", "ab", 8}, {"ab", "", 0}, {"", "", 0}, {"a", "b", 0}, {"ab", "ab", 0}} {
		if got := ask(x, h, Prompt{LoRA: tt.lora, Salt: tt.salt, Tokens: b.Tokens}); got[Device] != tt.want {
			t.Errorf("adapter %q, salt %q: %d tokens; want %d", tt.lora, tt.salt, got[Device], tt.want)
		}
	}
}

// TestStoredTwice: of a block that is stored twice, one removal leaves one. The same holds for a block in two groups.
func TestStoredTwice(t *testing.T) {
	x, h := index(100)
	b := run(0, 2, 4)
	other := *b
	other.Group = 1
	x.Store(h, b)
	x.Store(h, b)
	x.Store(h, &other)
	want := []int32{8, 8, 4}
	for i, group := range []int{0, 1, 0} {
		x.Remove(h, Device, group, b.Handles[1:])
		if got := ask(x, h, Prompt{Tokens: b.Tokens})[Device]; got != want[i] {
			t.Errorf("after %d removals: %d tokens; want %d", i+1, got, want[i])
		}
	}
}

// TestTiers: a block that goes to the host and leaves the device is had on the host, and the blocks before it on the device.
func TestTiers(t *testing.T) {
	x, h := index(100)
	b := run(0, 3, 4)
	x.Store(h, b)
	x.Store(h, &Blocks{Handles: []uint64{1, 2, 77}, Tier: Host}) // 77 is not known
	x.Remove(h, Device, 0, []uint64{1, 2})
	if got, want := ask(x, h, Prompt{Tokens: b.Tokens}), (Held{4, 12, 12}); got != want {
		t.Errorf("got %v; want %v", got, want)
	}
	if got, want := x.Stats(h), (HolderStats{Blocks: 3, Orphans: 1}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	x.Store(h, after(2, run(3, 1, 4))) // on the device again, after blocks of the host
	if got := ask(x, h, Prompt{Tokens: append(slices.Clone(b.Tokens), run(3, 1, 4).Tokens...)}); got != (Held{4, 16, 16}) {
		t.Errorf("got %v; want 4 tokens on the device and 16 in all", got)
	}
}

// TestBound: past the bound the blocks that come are not taken, and what comes after them are orphans. What is removed makes room.
func TestBound(t *testing.T) {
	x, h := index(4)
	long := run(0, 6, 4)
	x.Store(h, long)
	x.Store(h, after(5, run(6, 1, 4)))
	if got := ask(x, h, Prompt{Tokens: long.Tokens})[Device]; got != 16 {
		t.Errorf("%d tokens; want the first 16, for which there is room", got)
	}
	if got, want := x.Stats(h), (HolderStats{Blocks: 4, Refused: 2, Orphans: 1}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	x.Remove(h, Device, 0, []uint64{3, 2})
	other := run(50, 2, 4)
	x.Store(h, other)
	if got := ask(x, h, Prompt{Tokens: other.Tokens})[Device]; got != 8 {
		t.Errorf("%d tokens after two were removed; want 8", got)
	}
	for size := range maxSizes + 3 {
		x.Store(h, run(100, 1, 10+size))
	}
	if len(x.sizes) != maxSizes {
		t.Errorf("%d block sizes; want %d at most", len(x.sizes), maxSizes)
	}
	for _, b := range []*Blocks{
		{Handles: []uint64{1}, Tokens: []uint32{1, 2, 3}, Size: 4}, {Handles: []uint64{1}, Tokens: []uint32{1}, Size: 0},
		{Handles: []uint64{1}, Tokens: []uint32{1}, Size: 1, Tier: 9}, {Handles: []uint64{1}, Tokens: []uint32{1}, Size: 1, Extra: make([][]byte, 2)},
	} {
		was := x.Stats(h).Refused
		if x.Store(h, b); x.Stats(h).Refused != was+1 {
			t.Errorf("%+v is taken", b)
		}
	}
}

// TestSizes: engines of two block sizes are found by one prompt, each to its own block.
func TestSizes(t *testing.T) {
	x, h := index(100)
	other := x.Join()
	x.Show(other, true)
	x.Store(h, run(0, 5, 4))
	x.Store(other, run(0, 1, 16))
	tokens := run(0, 5, 4).Tokens
	if a, b := ask(x, h, Prompt{Tokens: tokens}), ask(x, other, Prompt{Tokens: tokens}); a[Device] != 20 || b[Device] != 16 {
		t.Errorf("%d and %d tokens; want 20 and 16", a[Device], b[Device])
	}
}

// TestManyHolders has more holders than bits in a word.
func TestManyHolders(t *testing.T) {
	x := New(10_000)
	var all []Holder
	for i := range 150 {
		h := x.Join()
		x.Show(h, true)
		x.Store(h, run(0, 1+i%7, 4))
		all = append(all, h)
	}
	for i, h := range all {
		if got, want := ask(x, h, Prompt{Tokens: run(0, 7, 4).Tokens})[Device], int32(4*(1+i%7)); got != want {
			t.Errorf("holder %d has %d tokens; want %d", i, got, want)
		}
		if i%2 == 0 {
			x.Leave(h)
		}
	}
	if h := x.Join(); int(h) != 0 || ask(x, h, Prompt{Tokens: run(0, 7, 4).Tokens}) != (Held{}) {
		t.Errorf("holder %d joins with blocks of one that has left", h)
	}
}

// TestBesideOthers has one engine store and clear many blocks in two tiers, which lets others in between, while another one stores, removes
// and is looked for: neither touches what the other has, and no place is lost.
func TestBesideOthers(t *testing.T) {
	x, h := index(100_000)
	other := x.Join()
	x.Show(other, true)
	many, few := run(0, 3*atOnce, 1), run(0, 50, 1)
	var both sync.WaitGroup
	both.Go(func() {
		for range 20 {
			x.Store(h, many)
			x.Store(h, &Blocks{Handles: many.Handles, Tier: Host})
			x.Clear(h)
		}
	})
	both.Go(func() {
		p := Prompt{Tokens: many.Tokens}
		for range 300 {
			x.Store(other, few)
			if got := ask(x, other, p)[Device]; got != 50 {
				t.Errorf("%d tokens; want 50", got)
			}
			x.Remove(other, Device, 0, few.Handles)
			if got := ask(x, other, p)[Device]; got != 0 {
				t.Errorf("%d tokens; want 0", got)
			}
		}
	})
	both.Wait()
	if size, _ := x.Size(); size != 0 || x.entered() != 0 || len(x.unused)+1 != len(x.places) {
		t.Errorf("%d blocks, %d entered, %d unused of %d places; want all unused", size, x.entered(), len(x.unused), len(x.places))
	}
	for i, at := range slices.Sorted(slices.Values(x.unused)) {
		if at != uint32(i+1) {
			t.Fatalf("place %d is unused twice, or 0", at)
		}
	}
}

// TestFindAllocations: a lookup costs no memory.
func TestFindAllocations(t *testing.T) {
	x, h := index(10_000)
	b := run(0, 1000, 16)
	x.Store(h, b)
	var f Found
	p := &Prompt{Model: "m", Salt: "s", Tokens: b.Tokens}
	x.Find(p, &f)
	if got := testing.AllocsPerRun(20, func() { x.Find(p, &f) }); got != 0 {
		t.Errorf("%v allocations a lookup; want 0", got)
	}
}

// fill gives the holder prompts of so many blocks until it has all, and returns the tokens of one of them.
func fill(x *Index, h Holder, all, each int) []uint32 {
	var one []uint32
	for first := 0; first < all; first += each {
		b := run(first, each, 16)
		x.Store(h, b)
		if first == all/each/2*each {
			one = b.Tokens
		}
	}
	return one
}

// TestMemory keeps what New says of memory.
func TestMemory(t *testing.T) {
	const blocks = 235_000 // when the map of handles has just grown
	var was, is runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&was)
	x, h := index(blocks)
	fill(x, h, blocks, 1000)
	runtime.GC()
	runtime.ReadMemStats(&is)
	if got := (is.HeapAlloc - was.HeapAlloc) / blocks; got > 100 {
		t.Errorf("%d bytes a block; want at most 100", got)
	}
	runtime.KeepAlive(x)
}

// BenchmarkFind looks for a prompt of 100,000 tokens among a million blocks of 16: one that was stored at once, and one whose blocks came two
// at a time among those of others. "hashing" is the part of it that goes into hashes of tokens.
func BenchmarkFind(b *testing.B) {
	for _, kind := range []string{"in order", "scattered"} {
		b.Run(kind, func(b *testing.B) {
			var was, is runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&was)
			x, h := index(1_000_000)
			var tokens []uint32
			if kind == "in order" {
				tokens = fill(x, h, 1_000_000-6250*2, 6250)
			} else { // 40 prompts that grow by 2 blocks in turn
				for turn := range 3125 {
					for p := range 40 {
						next := run(p*6250+turn*2, 2, 16)
						if turn > 0 {
							next = after(uint64(p*6250+turn*2-1), next)
						}
						if x.Store(h, next); p == 20 {
							tokens = append(tokens, next.Tokens...)
						}
					}
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&is)
			size, _ := x.Size()
			var f Found
			p := &Prompt{Model: "m", Tokens: tokens[:100_000]}
			for b.Loop() {
				x.Find(p, &f)
			}
			if got := f.Of(h)[Device]; got != 100_000 {
				b.Fatalf("found %d tokens; want all", got)
			}
			b.ReportMetric(float64(is.HeapAlloc-was.HeapAlloc)/float64(size), "bytes/block")
		})
	}
	b.Run("hashing", func(b *testing.B) {
		x, _ := index(1)
		tokens, h := run(0, 6250, 16).Tokens, uint64(0)
		for b.Loop() {
			h = 0
			for i := 0; i < len(tokens); i += 16 {
				h = x.next(h, tokens[i:i+16])
			}
		}
		_ = h
	})
}

// BenchmarkStore stores and removes blocks one by one, as engines that decode do.
func BenchmarkStore(b *testing.B) {
	x, h := index(1_000_000)
	fill(x, h, 500_000, 1000)
	one := after(0, run(600_000, 1, 16))
	for i := 0; b.Loop(); i++ {
		one.Handles[0], one.Tokens[0] = uint64(600_000+i), uint32(i)
		x.Store(h, one)
		x.Remove(h, Device, 0, one.Handles)
	}
}

// large is an event of 100,000 blocks: they are removed, or get into another tier.
var large = map[string]func(x *Index, h Holder, names []uint64){
	"remove": func(x *Index, h Holder, names []uint64) { x.Remove(h, Device, 0, names) },
	"tier":   func(x *Index, h Holder, names []uint64) { x.Store(h, &Blocks{Handles: names, Tier: Host}) },
}

// TestLargeEventsLetOthersIn: what others ask is answered while a large event is taken in.
func TestLargeEventsLetOthersIn(t *testing.T) {
	for name, event := range large {
		t.Run(name, func(t *testing.T) {
			within := 0
			for round := 0; within == 0 && round < 100; round++ { // whether others come within it is for the scheduler to say
				x, h := index(1_000_000)
				all := run(0, 100_000, 16)
				x.Store(h, all)
				var done atomic.Bool
				go func() {
					event(x, h, all.Handles)
					done.Store(true)
				}()
				from, _ := x.Size()
				for last := from; !done.Load(); {
					if size, _ := x.Size(); size != last {
						last = size
						if last != 0 && last != 200_000 {
							within++
						}
					}
				}
			}
			if within == 0 {
				t.Error("nothing was answered before the end of the event")
			}
		})
	}
}

// BenchmarkFindDuringEvent finds a prompt again and again while events of 100,000 blocks are taken in, and reports the longest that took.
func BenchmarkFindDuringEvent(b *testing.B) {
	for name, event := range large {
		b.Run(name, func(b *testing.B) {
			p, slowest := &Prompt{Model: "m", Tokens: make([]uint32, 4096)}, time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				x, h := index(1_000_000)
				all := run(0, 100_000, 16)
				x.Store(h, all)
				var done atomic.Bool
				var wg sync.WaitGroup
				var f Found
				b.StartTimer()
				wg.Go(func() { event(x, h, all.Handles); done.Store(true) })
				for !done.Load() {
					from := time.Now()
					x.Find(p, &f)
					slowest = max(slowest, time.Since(from))
				}
				wg.Wait()
			}
			b.ReportMetric(float64(slowest.Microseconds()), "slowest-find-µs")
		})
	}
}
