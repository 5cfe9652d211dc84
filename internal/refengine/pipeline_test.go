package refengine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/control"
	"pdrouter/kvplane/plan"
	"pdrouter/metadata"
)

func TestLayersOf(t *testing.T) {
	for _, c := range []struct {
		layers, stages int
		want           []span
	}{
		{5, 1, []span{{0, 5}}},
		{5, 2, []span{{0, 3}, {3, 2}}},
		{5, 4, []span{{0, 2}, {2, 1}, {3, 1}, {4, 1}}},
		{4, 4, []span{{0, 1}, {1, 1}, {2, 1}, {3, 1}}},
		{7, 3, []span{{0, 3}, {3, 2}, {5, 2}}},
	} {
		var got []span
		for s := range c.stages {
			got = append(got, layersOf(c.layers, s, c.stages))
		}
		if diff := cmp.Diff(got, c.want, cmp.AllowUnexported(span{})); diff != "" {
			t.Errorf("%d layers on %d stages (-got +want):\n%s", c.layers, c.stages, diff)
		}
	}
}

func TestForwardEqualsNaiveForEveryPP(t *testing.T) {
	shape := Shape{Seed: 8, Layers: 5, Heads: 2, HeadDim: 3}
	m := NewModel(shape)
	r := rand.New(rand.NewPCG(2, 1))
	for pp := 1; pp <= 5; pp++ {
		for _, tp := range []int{1, 2, 4} {
			e := newTestEngine(t, Config{Shape: shape, PP: pp, TP: tp, BlockTokens: 3, Blocks: 64, MaxStep: 4, MaxModelLen: 60})
			p := prompt(r, 1+r.IntN(20))
			got := ask(t, e, Request{Tokens: p, MaxTokens: 10, Leg: WholeLeg})
			if diff := cmp.Diff(got, naive(m, p, 10, 0, false)); diff != "" {
				t.Errorf("pp %d, tp %d, prompt of %d (-engine +naive):\n%s", pp, tp, len(p), diff)
			}
			allFree(t, e)
		}
	}
}

// TestStagesSplitAnswerAsOneEngine is TestSplitAnswersAsOneEngine over pipeline stages: each of 1, 2 and 4 stages of 1,
// 2 and 4 ranks on either side, with layers that the stages cannot share evenly. Block sizes, whether the KV is
// replicated on the ranks of a stage, and prefix caches vary along.
func TestStagesSplitAnswerAsOneEngine(t *testing.T) {
	shapes := []Shape{{Seed: 14, Layers: 5, Heads: 4, HeadDim: 2}, {Seed: 15, Layers: 5, Heads: 1, HeadDim: 3}}
	var whole []*Engine
	for _, s := range shapes {
		whole = append(whole, newTestEngine(t, Config{Shape: s}))
	}
	sizes := []int{1, 2, 4}
	seed := uint64(0)
	n := 0
	for _, ppp := range sizes {
		for _, ptp := range sizes {
			for _, dpp := range sizes {
				for _, dtp := range sizes {
					n++
					one := whole[n%2]
					blocks := [][2]int{{4, 4}, {2, 4}, {8, 4}, {3, 3}, {16, 32}}[n%5]
					name := fmt.Sprintf("pp %d tp %d to pp %d tp %d, blocks %v, heads %d", ppp, ptp, dpp, dtp, blocks, one.cfg.Shape.Heads)
					var book phonebook
					events := control.NewBroadcaster()
					feed, end := events.Subscribe(4096)
					x := pair{
						p: book.open(t, Config{Name: "p", Role: metadata.Prefill, Shape: one.cfg.Shape, PP: ppp, TP: ptp, BlockTokens: blocks[0], Blocks: 64, PrefixCache: n%3 == 1}),
						d: book.open(t, Config{Name: "d", Role: metadata.Decode, Shape: one.cfg.Shape, PP: dpp, TP: dtp, BlockTokens: blocks[1], Blocks: 64, PrefixCache: n%3 == 2,
							Plane: Plane{Events: events}}),
					}
					if err := metadata.Pairable(x.p.Records(), x.d.Records()); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					writers := agreed(t, x)
					const requests = 8 // 81 times
					base := prompt(rand.New(rand.NewPCG(seed, 1)), 16)
					var legs [][2]*Sequence
					var want [][]int32
					for i := range requests {
						seed++
						q := draw(rand.New(rand.NewPCG(seed, 0)))
						if i%2 == 1 {
							q.Tokens = append(slices.Clone(base), q.Tokens...)
						}
						p, d := x.dispatch(t, q)
						legs, want = append(legs, [2]*Sequence{p, d}), append(want, alone(t, one, q))
					}
					for i, l := range legs {
						if got, err := collect(l[0]); err != nil || len(got) != 1 {
							t.Errorf("%s: prefill answered %v, %v", name, got, err)
						}
						if got, err := collect(l[1]); err != nil || !slices.Equal(got, want[i]) {
							t.Errorf("%s: decode answered %v, %v; want %v", name, got, err, want[i])
						}
					}
					x.settled(t)
					if b := x.d.Books(); b.Computed != 0 || b.External == 0 {
						t.Errorf("%s: decode's prompts came from %+v", name, b)
					}
					end()
					ready := map[metadata.Rank]int{}
					for ev := range feed {
						if ev.Event != "ready" {
							continue
						}
						ready[ev.Rank]++
						// A prefix that decode holds whole needs nobody, and may be ready before anybody is counted.
						if w := writers[ev.Rank]; ev.K > w || n%3 != 2 && (ev.K != w || ev.N != w) {
							t.Errorf("%s: rank %s was ready with %d of %d writers; want %d", name, ev.Rank, ev.K, ev.N, w)
						}
					}
					for rank := range writers {
						if ready[rank] != requests {
							t.Errorf("%s: rank %s was ready %d times; want %d", name, rank, ready[rank], requests)
						}
					}
					closeEngine(t, x.d)
					closeEngine(t, x.p)
				}
			}
		}
	}
}

// agreed compares what both sides' records say of who hears of whom, and returns the writers of each rank of D.
func agreed(t *testing.T, x pair) map[metadata.Rank]int {
	t.Helper()
	ps, ds := x.p.Records(), x.d.Records()
	writers := map[metadata.Rank]int{}
	tells, hears := map[[2]string]bool{}, map[[2]string]bool{}
	for _, d := range ds {
		producers, err := plan.Producers(ps, d, plan.Allow{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range producers {
			hears[[2]string{p.Record.Agent, d.Agent}] = true
			if p.Writes {
				writers[d.Rank]++
			}
		}
	}
	for _, p := range ps {
		consumers, err := plan.Consumers(p, ds, plan.Allow{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range consumers {
			tells[[2]string{p.Agent, d.Agent}] = true
		}
	}
	if diff := cmp.Diff(tells, hears); diff != "" {
		t.Errorf("P's consumers and D's producers differ (-P +D):\n%s", diff)
	}
	return writers
}

// TestOneStageSilent lets one rank of one stage never hear of an offer: no decode rank of another stage may make up for it.
func TestOneStageSilent(t *testing.T) {
	shape := Shape{Seed: 16, Layers: 4, Heads: 2, HeadDim: 2}
	for rank := range 4 {
		var book phonebook
		x := pair{
			p: book.open(t, Config{Name: "p", Shape: shape, PP: 2, TP: 2, Faults: []Fault{{Leg: PrefillLeg, Nth: 0, Do: WithholdOffer, Rank: rank}}}),
			d: book.open(t, Config{Name: "d", Shape: shape, PP: 2}),
		}
		p, d := x.dispatch(t, Request{Tokens: tokenize("hello"), MaxTokens: 3})
		if _, err := collect(p); err != nil {
			t.Fatal(err)
		}
		p, whole := x.dispatch(t, Request{Tokens: tokenize("hello"), MaxTokens: 3}) // whatever could arrive is here after this
		for _, s := range []*Sequence{p, whole} {
			if _, err := collect(s); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case o := <-d.Outputs():
			t.Errorf("rank %d is silent, and decode answered %+v", rank, o)
		case <-time.After(10 * time.Millisecond):
		}
		x.d.Cancel(d)
		x.settled(t)
		closeEngine(t, x.d)
		closeEngine(t, x.p)
	}
}
