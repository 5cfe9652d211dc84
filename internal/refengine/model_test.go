package refengine

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

// naive answers a prompt without pages, ranks, caches or running sums: it computes every position of every layer anew
// for each token. It is what the engine must equal.
func naive(m *Model, prompt []int32, maxTokens, minTokens int, ignoreEnd bool) []int32 {
	tokens := append([]int32(nil), prompt...)
	var answer []int32
	for len(answer) < maxTokens {
		h := naiveForward(m, tokens)
		t := m.pick(&h, !ignoreEnd && len(answer) >= minTokens)
		if t == tokenEnd {
			break
		}
		tokens, answer = append(tokens, t), append(answer, t)
	}
	return answer
}

func naiveForward(m *Model, tokens []int32) hidden {
	states := make([]hidden, len(tokens))
	for t, tok := range tokens {
		states[t] = m.embed(tok, t)
	}
	d := m.shape.HeadDim
	for l := range m.shape.Layers {
		after := make([]hidden, len(tokens))
		for t := range tokens {
			var all hidden
			for head := range m.shape.Heads {
				var sums [planes][]uint64
				for p := range planes {
					sums[p] = make([]uint64, d)
					word := make([]uint64, d)
					for before := range t + 1 {
						m.projectTo(word, l, p, head, &states[before])
						for i, x := range word {
							sums[p][i] += scramble(x + m.keys(l, p, head)[i] + uint64(before)*positionStep)
						}
					}
				}
				q := make([]uint64, d)
				m.projectTo(q, l, projectionQ, head, &states[t])
				m.attend(&all, l, head, q, sums[planeK], sums[planeV])
			}
			after[t] = m.next(l, &states[t], &all)
		}
		states = after
	}
	return states[len(states)-1]
}

// prompt draws n tokens.
func prompt(r *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = r.Int32N(tokenBegin)
	}
	return out
}

func TestForwardEqualsNaiveForEveryTPAndBlockSize(t *testing.T) {
	shape := Shape{Seed: 7, Layers: 3, Heads: 2, HeadDim: 3}
	m := NewModel(shape)
	r := rand.New(rand.NewPCG(1, 1))
	for _, tp := range []int{1, 2, 4} { // 4 ranks share 2 heads
		for _, block := range []int{1, 3, 16} {
			for _, order := range []metadata.Order{metadata.HeadsFirst, metadata.TokensFirst} {
				for _, step := range []int{4, 1000} {
					e := newTestEngine(t, Config{Shape: shape, TP: tp, BlockTokens: block, Blocks: 64, Order: order, MaxStep: step, MaxModelLen: 60})
					p := prompt(r, 1+r.IntN(20))
					got := ask(t, e, Request{Tokens: p, MaxTokens: 10, Leg: WholeLeg})
					if diff := cmp.Diff(got, naive(m, p, 10, 0, false)); diff != "" {
						t.Errorf("tp %d, blocks of %d, %s, steps of %d, prompt of %d (-engine +naive):\n%s", tp, block, order, step, len(p), diff)
					}
					allFree(t, e)
				}
			}
		}
	}
}

func TestScrambleIsABijection(t *testing.T) {
	// The steps are invertible one by one; undoing them must give the argument back.
	inverse := uint64(0xd6e8feb86659fd93)
	for range 6 { // Newton: each round doubles the right bits
		inverse *= 2 - 0xd6e8feb86659fd93*inverse
	}
	r := rand.New(rand.NewPCG(2, 2))
	for range 1000 {
		x := r.Uint64()
		y := scramble(x)
		y ^= y >> 32
		y *= inverse
		y ^= y >> 32
		y *= inverse
		y ^= y >> 32
		if y != x {
			t.Fatalf("scramble(%#x) undone is %#x", x, y)
		}
	}
}

func TestAnswersEndAndDiffer(t *testing.T) {
	m := NewModel(Shape{Seed: 3, Layers: 1, Heads: 1, HeadDim: 1})
	r := rand.New(rand.NewPCG(3, 3))
	ended, long := 0, map[string]bool{}
	for range 64 {
		p := prompt(r, 3)
		a := naive(m, p, 8, 0, false)
		if len(a) < 8 {
			ended++
			if got := naive(m, p, 8, 8, false); len(got) != 8 {
				t.Errorf("with min_tokens 8 the answer has %d tokens", len(got))
			}
			if got := naive(m, p, 8, 0, true); len(got) != 8 {
				t.Errorf("with the end ignored the answer has %d tokens", len(got))
			}
		} else {
			long[string(detokenize(nil, a...))] = true
		}
	}
	if ended == 0 || len(long) != 64-ended {
		t.Errorf("%d of 64 answers ended by themselves, %d of the others differ; want some, and all", ended, len(long))
	}
}
