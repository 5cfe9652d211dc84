package prefixes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// naive is the index as it is described: links from the oldest to the newest, each with whoever has it.
type naive struct {
	bound int
	links []naiveLink
}

type naiveLink struct {
	hash uint64
	has  map[int]bool
}

func (n *naive) note(chain []uint64, who int) {
	chain = chain[:min(len(chain), n.bound)]
	for _, hash := range slices.Backward(chain) {
		one := naiveLink{hash, map[int]bool{}}
		if i := slices.IndexFunc(n.links, func(l naiveLink) bool { return l.hash == hash }); i >= 0 {
			one = n.links[i]
			n.links = slices.Delete(n.links, i, i+1)
		} else if len(n.links) == n.bound {
			n.links = n.links[1:]
		}
		one.has[who] = true
		n.links = append(n.links, one)
	}
}

func (n *naive) find(chain []uint64, who int) int {
	for i, hash := range chain {
		if !slices.ContainsFunc(n.links, func(l naiveLink) bool { return l.hash == hash && l.has[who] }) {
			return i
		}
	}
	return len(chain)
}

func (n *naive) leave(who int) {
	for _, l := range n.links {
		delete(l.has, who)
	}
}

// TestIndexAgainstNaive has engines come, go and be given prompts that begin alike, and the index say of each what a naive one says.
func TestIndexAgainstNaive(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		bound := 1 + rng.IntN(60)
		x, n := New(bound), &naive{bound: bound}
		holders, next := map[int]Holder{}, 0
		var pieces []int32
		for step := range 400 {
			var prompt [finePiece * 12]byte // pieces of two kinds, so that many chains begin alike
			for i := range len(prompt) / finePiece {
				prompt[i*finePiece] = byte(rng.IntN(2))
			}
			chain, _ := x.Chain(nil, x.Key(0, []string{"a", "b"}[rng.IntN(2)]), prompt[:rng.IntN(len(prompt))])
			switch who := rng.IntN(next + 1); {
			case len(holders) < 3 || rng.IntN(20) == 0:
				holders[next] = x.Join(0)
				next++
			case rng.IntN(10) == 0:
				if h, there := holders[who]; there {
					x.Leave(h)
					delete(holders, who)
					n.leave(who)
				}
			default:
				if h, there := holders[who]; there {
					x.Note(&Prompt{Links: chain}, h)
					n.note(chain, who)
				}
			}
			pieces = x.Find(chain, pieces)
			for who, h := range holders {
				if got, want := int(pieces[h]), n.find(chain, who); got != want {
					t.Fatalf("seed %d, step %d: engine %d has %d of %d pieces; want %d", seed, step, who, got, len(chain), want)
				}
			}
			if got := x.Stats().Links; got != len(n.links) {
				t.Fatalf("seed %d, step %d: %d links; want %d", seed, step, got, len(n.links))
			}
		}
	}
}

// TestIndexForgetsTheOldest fills an index twice: it holds what was asked for last, of a chain the beginning, and as much memory as
// before.
func TestIndexForgetsTheOldest(t *testing.T) {
	x := New(8)
	h, size := x.Join(0), x.Stats().Bytes
	note := func(from, n int) []uint64 {
		var chain []uint64
		for i := range n {
			chain = append(chain, uint64(from+i))
		}
		x.Note(&Prompt{Links: chain}, h)
		return chain
	}
	found := func(chain []uint64) int { return int(x.Find(chain, nil)[h]) }
	a, b, c := note(100, 4), note(200, 4), note(300, 2)
	if got, want := []int{found(a), found(b), found(c)}, []int{2, 4, 2}; !slices.Equal(got, want) {
		t.Errorf("got %d pieces of each; want %d: the ends of the oldest are forgotten", got, want)
	}
	long := note(400, 20)
	if got, want := []int{found(a), found(b), found(c), found(long)}, []int{0, 0, 0, 8}; !slices.Equal(got, want) {
		t.Errorf("got %d pieces of each; want %d: of a prompt longer than all there is room for, the beginning", got, want)
	}
	want := Stats{Links: 8, Bound: 8, Bytes: size, Looked: 40, Known: 16, Evicted: 10}
	if d := cmp.Diff(x.Stats(), want); d != "" {
		t.Error("(-got +want):\n" + d)
	}
}

// TestIndexMemory keeps what New says of memory.
func TestIndexMemory(t *testing.T) {
	for _, bound := range []int{1, 1000, 1 << 16, 100_000} {
		x := New(bound)
		if got, low, high := x.Stats().Bytes, 35*bound, 40*bound+64; got < low || got > high {
			t.Errorf("%d links take %d bytes; want %d to %d", bound, got, low, high)
		}
		before := x.Stats().Bytes
		for range 65 {
			x.Join(0)
		}
		if got, want := x.Stats().Bytes, before+8*(bound+1); got != want {
			t.Errorf("%d links take %d bytes with 65 engines; want %d", bound, got, want)
		}
	}
}

// TestHolders has engines leave and join far more often than there are bits: no new one has what another had, and no more bits are made
// than are needed at a time.
func TestHolders(t *testing.T) {
	x := New(100)
	stays := x.Join(0)
	chain := []uint64{1, 2, 3}
	x.Note(&Prompt{Links: chain}, stays)
	for i := range 500 {
		h := x.Join(0)
		if p := x.Find(chain, nil); p[h] != 0 || p[stays] != 3 {
			t.Fatalf("engine %d has %d pieces when it joins, the one that stays %d; want 0 and 3", i, p[h], p[stays])
		}
		x.Note(&Prompt{Links: chain[:2]}, h)
		if p := x.Find(chain, nil); p[h] != 2 {
			t.Fatalf("engine %d has %d pieces; want 2", i, p[h])
		}
		x.Leave(h)
		x.Note(&Prompt{Links: chain}, h) // a leg that was late
		if p := x.Find(chain, nil); p[h] != 0 {
			t.Fatalf("engine %d has %d pieces when it has left", i, p[h])
		}
	}
	if x.words != 1 {
		t.Errorf("%d words of bits; want 1", x.words)
	}
}

// TestChains: what differs before the prompt or within it makes another chain, from there on.
func TestChains(t *testing.T) {
	x := New(100)
	prompt := make([]byte, 4*finePiece+10)
	chain := func(p []byte, keys ...string) []uint64 {
		var k Key
		for _, s := range keys {
			k = x.Key(k, s)
		}
		c, _ := x.Chain(nil, k, p)
		return c
	}
	same := func(a, b []uint64) (n int) {
		for n < len(a) && n < len(b) && a[n] == b[n] {
			n++
		}
		return n
	}
	all := chain(prompt, "model", "tenant")
	other := slices.Clone(prompt)
	other[2*finePiece] = 1
	for _, tt := range []struct {
		name  string
		chain []uint64
		want  int
	}{
		{"the same", chain(prompt, "model", "tenant"), 11},
		{"more behind it", chain(append(slices.Clone(prompt), prompt...), "model", "tenant"), 11},
		{"another third 512 bytes", chain(other, "model", "tenant"), 9},
		{"another model", chain(prompt, "model2", "tenant"), 0},
		{"another tenant", chain(prompt, "model", "tenant2"), 0},
		{"the same letters", chain(prompt, "modelt", "enant"), 0},
		{"no tenant", chain(prompt, "model"), 0},
		{"less than 512 bytes", chain(prompt[:finePiece-1], "model", "tenant"), 7},
		{"less than a piece", chain(prompt[:headPiece-1], "model", "tenant"), 0},
	} {
		if got := same(all, tt.chain); got != tt.want {
			t.Errorf("%s: %d pieces in common; want %d", tt.name, got, tt.want)
		}
	}
	if got, _ := New(3).Chain(nil, 0, prompt); len(got) != 3 {
		t.Errorf("%d links for an index of 3", len(got))
	}
	long := make([]byte, 16<<10+3*coarsePiece+100)
	far := slices.Clone(long)
	far[16<<10+2*coarsePiece] = 1
	if a, b := chain(long), chain(far); len(a) != headPieces+finePieces+3 || same(a, b) != headPieces+finePieces+2 {
		t.Errorf("%d links of a long prompt, %d in common; want %d and one less", len(a), same(a, b), headPieces+finePieces+3)
	}
	for n, want := range map[int]int{0: 0, 1: 64, 8: 512, 9: 1024, 39: 16384, 40: 18432, 42: 22528} {
		if got := Bytes(n); got != want {
			t.Errorf("%d links stand for %d bytes; want %d", n, got, want)
		}
	}
	parts := func(tools string) []uint64 {
		c, k := x.Chain(nil, x.Key(0, "model"), append(make([]byte, finePiece), tools...))
		c, _ = x.Chain(c, k, prompt)
		return c
	}
	if got := same(parts("f"), parts("g")); got != 8 {
		t.Errorf("%d pieces in common of prompts behind tools whose ends differ; want 8", got)
	}
	if got := same(parts("f"), parts("f")); got != 12 {
		t.Errorf("%d pieces in common of two equal parts; want 12", got)
	}
	seen := map[uint64]bool{}
	for _, h := range all { // of equal pieces too
		seen[h] = true
	}
	if len(seen) != len(all) {
		t.Errorf("%d of %d links differ", len(seen), len(all))
	}
}

// TestIndexAllocations: a request costs no memory.
func TestIndexAllocations(t *testing.T) {
	x := New(1000)
	h, prompt := x.Join(0), make([]byte, 220<<10)
	chain, pieces := make([]uint64, 0, 500), make([]int32, 64)
	if got := testing.AllocsPerRun(20, func() {
		prompt[0]++
		chain, _ = x.Chain(chain[:0], x.Key(0, "model"), prompt)
		pieces = x.Find(chain, pieces)
		x.Note(&Prompt{Links: chain}, h)
	}); got != 0 {
		t.Errorf("%v allocations a request; want 0", got)
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, kb := range []int{1, 16, 220} {
		b.Run(fmt.Sprint(kb, "KB"), func(b *testing.B) {
			x := New(1 << 20)
			h, prompt := x.Join(0), make([]byte, kb<<10)
			chain, pieces := make([]uint64, 0, 500), make([]int32, 64)
			for i := 0; b.Loop(); i++ {
				prompt[0], prompt[1] = byte(i), byte(i>>8)
				chain, _ = x.Chain(chain[:0], 0, prompt)
				pieces = x.Find(chain, pieces)
				x.Note(&Prompt{Links: chain}, h)
			}
		})
	}
}

// TestIndexBuckets: prompts that have much in common, and then nothing, are spread over all buckets.
func TestIndexBuckets(t *testing.T) {
	x := New(1 << 14)
	h, prompt := x.Join(0), make([]byte, 16*finePiece)
	for i := range 1 << 10 {
		prompt[5*finePiece], prompt[5*finePiece+1] = byte(i), byte(i>>8)
		chain, _ := x.Chain(nil, 0, prompt)
		x.Note(&Prompt{Links: chain}, h)
	}
	longest := 0
	for _, at := range x.buckets {
		n := 0
		for ; at != 0; at = x.links[at].next {
			n++
		}
		longest = max(longest, n)
	}
	if longest > 12 { // of 11,269 links in 16,384 buckets
		t.Errorf("%d links in one bucket", longest)
	}
}
