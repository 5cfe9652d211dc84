package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// naivePool is the KV cache block by block: those that requests hold, with how many, and the others from the least recently used one on.
type naivePool struct {
	blocks, own int
	held        map[[2]uint64]int
	idle        [][2]uint64
}

// blocksOf are the first n blocks of a prompt, by run and number.
func blocksOf(prompt []Run, n int) [][2]uint64 {
	var out [][2]uint64
	for _, r := range prompt {
		for i := range r.Blocks {
			out = append(out, [2]uint64{r.ID, uint64(i)})
		}
	}
	return out[:min(n, len(out))]
}

func (p *naivePool) hold(b [2]uint64) {
	if p.held[b]++; p.held[b] == 1 {
		p.idle = slices.DeleteFunc(p.idle, func(o [2]uint64) bool { return o == b })
	}
}

func (p *naivePool) take(prompt []Run, most, need int) (found int, ok bool) {
	blocks := blocksOf(prompt, most)
	woken := 0
	for _, b := range blocks {
		unused := slices.Contains(p.idle, b)
		if p.held[b] == 0 && !unused {
			break
		}
		if found++; unused {
			woken++
		}
	}
	if len(p.held)+p.own+woken+need-found > p.blocks {
		return 0, false
	}
	for _, b := range blocks[:found] {
		p.hold(b)
	}
	p.own += need - found
	over := len(p.held) + p.own + len(p.idle) - p.blocks
	p.idle = slices.Delete(p.idle, 0, max(0, over))
	return found, true
}

func (p *naivePool) remember(prompt []Run, from, to int) {
	for _, b := range blocksOf(prompt, to)[from:] {
		p.own--
		p.hold(b)
	}
}

func (p *naivePool) release(prompt []Run, found, own int) {
	p.own -= own
	for _, b := range slices.Backward(blocksOf(prompt, found)) {
		if p.held[b]--; p.held[b] == 0 {
			delete(p.held, b)
			p.idle = append(p.idle, b)
		}
	}
}

// TestKVPoolByRuns holds the pool, which counts the blocks of a run together, against one block by block.
func TestKVPoolByRuns(t *testing.T) {
	type request struct {
		prompt           []Run
		h                kvHeld
		found, all, need int
	}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, want := newKVPool(60), &naivePool{blocks: 60, held: map[[2]uint64]int{}}
		var under []*request
		for range 400 {
			switch n := len(under); {
			case rng.IntN(3) == 0 && n > 0: // one computes more of its prompt
				r := under[rng.IntN(n)]
				to := r.found + rng.IntN(r.all-r.found+1)
				p.remember(&r.h, r.prompt, to)
				want.remember(r.prompt, r.found, to)
				r.found = to
			case rng.IntN(2) == 0 && n > 0: // one ends
				i := rng.IntN(n)
				r := under[i]
				p.release(&r.h)
				want.release(r.prompt, r.found, r.need-r.found)
				under = slices.Delete(under, i, i+1)
			default: // one comes: of few conversations, which share their beginning and branch
				r := &request{prompt: []Run{{1, 4}}}
				branch := uint64(2 + rng.IntN(3))
				for i := range uint64(rng.IntN(4)) {
					r.prompt = append(r.prompt, Run{branch*10 + i, 4})
				}
				last := &r.prompt[len(r.prompt)-1]
				last.Blocks = 1 + rng.IntN(4)
				r.all = 4*(len(r.prompt)-1) + last.Blocks
				r.need = r.all + rng.IntN(3)
				most := r.all - rng.IntN(2)
				h, ok := p.take(r.prompt, most, r.need)
				found, naively := want.take(r.prompt, most, r.need)
				if ok != naively || ok && h.blocks != found {
					t.Fatalf("seed %d: found %d (%t); want %d (%t)", seed, h.blocks, ok, found, naively)
				}
				if ok {
					r.h, r.found = h, found
					under = append(under, r)
				}
			}
			if p.used != len(want.held)+want.own || p.unused != len(want.idle) {
				t.Fatalf("seed %d: %d used and %d unused; want %d and %d", seed, p.used, p.unused, len(want.held)+want.own, len(want.idle))
			}
		}
	}
}
