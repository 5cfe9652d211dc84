package prefixes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// lru is what one holder has, as it is described: links from the one that was used last, with their tokens.
type lru struct {
	capacity int
	links    []lruLink
}

type lruLink struct {
	hash   uint64
	tokens int
	stamp  int
}

func (l *lru) use(one lruLink) {
	l.drop(one.hash)
	l.links = append(l.links, one)
	used := 0
	for i := len(l.links) - 1; i >= 0; i-- {
		if used += l.links[i].tokens; used > l.capacity && i < len(l.links)-1 {
			l.links = l.links[i+1:]
			return
		}
	}
}

func (l *lru) drop(hash uint64) {
	l.links = slices.DeleteFunc(l.links, func(o lruLink) bool { return o.hash == hash })
}

func (l *lru) has(hash uint64) bool {
	return slices.ContainsFunc(l.links, func(o lruLink) bool { return o.hash == hash })
}

// TestCapacityAgainstNaive has engines of known capacity be given prompts that begin alike, with answers, some of which are taken back, and the index
// say of each what a naive one says. The index itself has room for all.
func TestCapacityAgainstNaive(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		x := New(10_000)
		holders, naive := make([]Holder, 3), make([]lru, 3)
		for i := range holders {
			naive[i].capacity = 1 + rng.IntN(3000)
			holders[i] = x.Join(naive[i].capacity)
		}
		var pieces []int32
		for step := range 400 {
			var text [finePiece * 12]byte
			for i := range len(text) / finePiece {
				text[i*finePiece] = byte(rng.IntN(2))
			}
			raw := text[:rng.IntN(len(text))]
			p := Prompt{Rate: .25}
			key := x.Key(0, "m")
			p.Links, _ = x.Chain(nil, key, raw)
			end := x.End(p.Links, key, 0, raw, len(raw))
			p.Ends = []End{{end, rng.IntN(40)}, {Answered(end), rng.IntN(200)}}[:rng.IntN(3)]
			who := rng.IntN(3)
			h, n := holders[who], &naive[who]
			had := int(append(x.Find(p.Links, pieces), 0)[h])
			stamp := x.Note(&p, h)
			if len(p.Links) > 0 {
				for _, e := range slices.Backward(p.Ends) {
					n.use(lruLink{e.Hash, e.Tokens, step})
				}
			}
			for i, hash := range slices.Backward(p.Links) {
				n.use(lruLink{hash, pieceAt(i) / 4, step})
			}
			switch rng.IntN(4) {
			case 0:
				x.Undo(&p, had, h, stamp)
				for _, hash := range p.Links[had:] {
					n.drop(hash)
				}
				for _, e := range p.Ends {
					n.drop(e.Hash)
				}
			case 1:
				x.Drop(end, h)
				n.drop(end)
			}
			pieces = x.Find(p.Links, pieces)
			for i, h := range holders {
				want := 0
				for want < len(p.Links) && naive[i].has(p.Links[want]) {
					want++
				}
				if got := int(pieces[h]); got != want {
					t.Fatalf("seed %d, step %d: engine %d has %d of %d pieces; want %d", seed, step, i, got, len(p.Links), want)
				}
				for _, e := range p.Ends {
					if got, want := in(x.Has(e.Hash, nil), h), naive[i].has(e.Hash); got != want {
						t.Fatalf("seed %d, step %d: engine %d has an end: %v; want %v", seed, step, i, got, want)
					}
				}
			}
		}
		all := 0
		for i := range naive {
			all += len(naive[i].links)
		}
		if x.nodes != all {
			t.Fatalf("seed %d: %d nodes; want %d", seed, x.nodes, all)
		}
		for _, h := range holders {
			x.Leave(h)
		}
		if x.nodes != 0 {
			t.Errorf("seed %d: %d nodes are left", seed, x.nodes)
		}
	}
}

// TestCapacityIsBounded: the index bounds what it remembers of engines that say they have room for more.
func TestCapacityIsBounded(t *testing.T) {
	x := New(50)
	var holders []Holder
	for range 20 {
		holders = append(holders, x.Join(1<<40))
	}
	for i := range 100 {
		var links []uint64
		for j := range 30 {
			links = append(links, uint64(i/4*1000+j+1))
		}
		x.Note(&Prompt{Links: links, Rate: 1}, holders[i%len(holders)])
		for _, h := range holders[1:] {
			x.Note(&Prompt{Links: links, Rate: 1}, h)
		}
		if x.nodes > mostNodes*50+len(holders) {
			t.Fatalf("%d nodes; want at most %d", x.nodes, mostNodes*50)
		}
		nodes := 0
		for _, c := range x.caches {
			if c != nil {
				nodes += c.len()
			}
		}
		if nodes != x.nodes {
			t.Fatalf("%d nodes are counted; there are %d", x.nodes, nodes)
		}
	}
}

// TestEndsOfParts: a prompt that goes on with another one has that one's end, wherever its pieces end.
func TestEndsOfParts(t *testing.T) {
	x := New(1000)
	text := make([]byte, 5000)
	for i := range text {
		text[i] = byte(i * i)
	}
	tools, key := []byte(`[{"type":"function"}]`), x.Key(0, "m")
	chain := func(n int) (links []uint64, end func(at int) uint64) {
		links, after := x.Chain(nil, key, tools)
		before := len(links)
		links, _ = x.Chain(links, after, text[:n])
		return links, func(at int) uint64 { return x.End(links, after, before, text[:n], at) }
	}
	_, all := chain(len(text))
	seen := map[uint64]int{}
	for _, n := range []int{1, 63, 64, 65, 511, 512, 513, 1024, 3000, 4999} {
		_, end := chain(n)
		if end(n) != all(n) {
			t.Errorf("the end at %d is another one in a prompt that goes on", n)
		}
		if was, ok := seen[end(n)]; ok {
			t.Error(fmt.Sprint("the ends at ", n, " and ", was, " are the same"))
		}
		seen[end(n)] = n
	}
}

// BenchmarkNoteFull notes prompts of 16 KB at an engine whose cache is full.
func BenchmarkNoteFull(b *testing.B) {
	for _, capacity := range []int{0, 500_000} {
		b.Run(fmt.Sprint(capacity), func(b *testing.B) {
			x := New(1 << 18)
			h, text := x.Join(capacity), make([]byte, 16<<10)
			var links []uint64
			b.ReportAllocs()
			for i := range b.N {
				text[0], text[1], text[2] = byte(i), byte(i>>8), byte(i>>16)
				links, _ = x.Chain(links[:0], 0, text)
				x.Note(&Prompt{Links: links, Rate: .25}, h)
			}
		})
	}
}

// TestReserve: what a cache keeps room for takes the place of what was not used for the longest, until it is given back, also if the holder has left.
func TestReserve(t *testing.T) {
	x := New(100)
	h := x.Join(100)
	has := func(hash uint64) bool { return In(x.Has(hash, nil), h) }
	note := func(hash uint64) { x.Note(&Prompt{Links: []uint64{hash}, Rate: 40. / headPiece}, h) }
	note(1)
	note(2)
	r := x.Reserve(h, 50)
	if has(1) || !has(2) {
		t.Errorf("first %t, second %t; want the second alone", has(1), has(2))
	}
	if note(3); has(2) || !has(3) {
		t.Errorf("second %t, third %t; want the third alone", has(2), has(3))
	}
	x.Return(r)
	if note(4); !has(3) || !has(4) {
		t.Errorf("third %t, fourth %t; want both", has(3), has(4))
	}
	r = x.Reserve(h, 1000)
	x.Leave(h)
	x.Return(r)
	x.Return(x.Reserve(h, 5))
	x.Return(x.Reserve(x.Join(0), 5))
}
