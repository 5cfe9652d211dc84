package refengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

// phonebook is a directory of the engines of one test.
type phonebook struct {
	mu      sync.Mutex
	engines map[metadata.Incarnation][]metadata.Record
}

func (b *phonebook) Engine(_ context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for known := range b.engines {
		if known.Engine == inc.Engine && known.Generation > inc.Generation {
			return nil, fmt.Errorf("engine %s: %w", inc.ID(), agent.ErrSuperseded)
		}
	}
	if recs, ok := b.engines[inc]; ok {
		return recs, nil
	}
	return nil, fmt.Errorf("engine %s is not in the phonebook", inc.ID())
}

func (b *phonebook) add(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.engines == nil {
		b.engines = map[metadata.Incarnation][]metadata.Record{}
	}
	b.engines[e.Incarnation()] = e.Records()
}

// open starts an engine whose ranks have agents over tcp on loopback.
func (b *phonebook) open(t *testing.T, c Config) *Engine {
	t.Helper()
	c.Plane.Transport = func(int) (transport.Transport, error) { return tcp.New(tcp.Config{}), nil }
	c.Plane.Directory = b
	if c.Plane.Times == (kvplane.Times{}) {
		c.Plane.Times = kvplane.Times{NetDelay: 10 * time.Millisecond}
	}
	e := newTestEngine(t, c)
	b.add(e)
	return e
}

// pair is a prefill and a decode engine.
type pair struct {
	p, d *Engine
}

// dispatch sends both legs of one request at once and returns their sequences.
func (x pair) dispatch(t *testing.T, q Request) (p, d *Sequence) {
	t.Helper()
	h := Handoff{ID: kvplane.NewTransferID(), Valid: 30 * time.Second}
	first := q
	first.Leg, first.MaxTokens, first.MinTokens = PrefillLeg, 1, 0
	first.Handoff = h
	first.Handoff.Peer = x.d.Incarnation()
	q.Leg, q.Handoff = DecodeLeg, h
	q.Handoff.Peer = x.p.Incarnation()
	d, err := x.d.Submit(q)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = x.p.Submit(first); err != nil {
		t.Fatal(err)
	}
	return p, d
}

// settled waits until every block of both engines is free.
func (x pair) settled(t *testing.T) {
	t.Helper()
	for _, e := range []*Engine{x.p, x.d} {
		eventually(t, func() bool { b := e.Books(); return b.Free == b.Blocks && b.Transfers == 0 })
		allFree(t, e)
	}
}

// alone answers a request in one engine without a plane, which TestForwardEqualsNaiveForEveryTPAndBlockSize holds
// against the naive model.
func alone(t *testing.T, e *Engine, q Request) []int32 {
	t.Helper()
	q.Leg = WholeLeg
	return ask(t, e, q)
}

// draw makes a request of 1 to 32 tokens with an answer of 7.
func draw(r *rand.Rand) Request {
	return Request{Tokens: prompt(r, 1+r.IntN(32)), MaxTokens: 7, IgnoreEnd: true}
}

// TestSplitAnswersAsOneEngine is the property that everything else serves: over every pair of TP sizes, block sizes,
// and orders of memory, a request that is split answers as one engine alone, and no block is lost.
func TestSplitAnswersAsOneEngine(t *testing.T) {
	shape := Shape{Seed: 11, Layers: 2, Heads: 4, HeadDim: 2}
	one := newTestEngine(t, Config{Shape: shape})
	seed := uint64(0)
	for _, tp := range []int{1, 2, 4} {
		for _, dtp := range []int{1, 2, 4} {
			for i, blocks := range [][2]int{{4, 4}, {2, 4}, {8, 4}, {3, 3}} {
				var book phonebook
				order := metadata.HeadsFirst
				if i == 3 && tp == dtp {
					order = metadata.TokensFirst
				}
				x := pair{
					p: book.open(t, Config{Name: "p", Role: metadata.Prefill, Shape: shape, TP: tp, BlockTokens: blocks[0], Blocks: 200, Order: order, PrefixCache: i == 1}),
					d: book.open(t, Config{Name: "d", Role: metadata.Decode, Shape: shape, TP: dtp, BlockTokens: blocks[1], Blocks: 200, Order: order, PrefixCache: i == 2}),
				}
				base := prompt(rand.New(rand.NewPCG(seed, 1)), 16)
				const seeds = 28 // 36 times
				for round := range seeds / 7 {
					type running struct {
						p, d *Sequence
						want []int32
						seed uint64
					}
					var all []running
					for n := range 7 {
						seed++
						q := draw(rand.New(rand.NewPCG(seed, 0)))
						if n == 0 || round > 0 && n < 3 { // begins as one of the first round: cached here or there
							q.Tokens = append(slices.Clone(base), q.Tokens...)
						}
						p, d := x.dispatch(t, q)
						all = append(all, running{p, d, alone(t, one, q), seed})
					}
					for _, r := range all {
						if got, err := collect(r.p); err != nil || len(got) != 1 {
							t.Errorf("seed %d, tp %d to %d, blocks %v: prefill answered %v, %v", r.seed, tp, dtp, blocks, got, err)
						}
						if got, err := collect(r.d); err != nil || !slices.Equal(got, r.want) {
							t.Errorf("seed %d, tp %d to %d, blocks %v: decode answered %v, %v; want %v", r.seed, tp, dtp, blocks, got, err, r.want)
						}
					}
					x.settled(t)
				}
				b := x.d.Books()
				if b.Computed != 0 || b.External == 0 || (i == 2) != (b.Cached > 0) {
					t.Errorf("tp %d to %d, blocks %v: decode's prompts came from %+v", tp, dtp, blocks, b)
				}
				closeEngine(t, x.d)
				closeEngine(t, x.p)
			}
		}
	}
	if seed < 1000 {
		t.Errorf("%d seeds; want at least 1,000", seed)
	}
}

// TestDamageShows changes KV between its arrival and the first token: any bit, any two blocks, any block of another
// request. The answer must differ each time; without damage the same requests answer as one engine.
func TestDamageShows(t *testing.T) {
	shape := Shape{Seed: 12, Layers: 2, Heads: 4, HeadDim: 2}
	one := newTestEngine(t, Config{Shape: shape})
	const blockTokens, blocks = 4, 200
	shapes := [][2]int{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {4, 4}}
	for i, tps := range shapes {
		const per = 112 // times 9, of every kind of damage and of none
		var faults []Fault
		var requests []Request
		var kinds []Do
		r := rand.New(rand.NewPCG(uint64(i), 1))
		ranks := tps[1]
		for n := range 4 * per {
			q := draw(r)
			if len(q.Tokens) <= blockTokens {
				q.Tokens = append(q.Tokens, prompt(r, blockTokens)...)
			}
			table := (len(q.Tokens) + blockTokens - 1) / blockTokens
			f := Fault{Leg: DecodeLeg, Nth: n, Do: []Do{0, FlipBit, SwapBlocks, ForeignBlock}[n%4], Rank: r.IntN(ranks)}
			switch f.Do {
			case FlipBit:
				f.Layer, f.Plane, f.Head = r.IntN(shape.Layers), r.IntN(planes), r.IntN(shape.Heads/ranks)
				f.Token, f.Bit = r.IntN(len(q.Tokens)), r.IntN(64*shape.HeadDim)
			case SwapBlocks:
				f.Block = r.IntN(table)
				f.Other = (f.Block + 1 + r.IntN(table-1)) % table
			case ForeignBlock:
				f.Block, f.Other = r.IntN(table), r.IntN(blocks)
			}
			if f.Do != 0 {
				faults = append(faults, f)
			}
			requests, kinds = append(requests, q), append(kinds, f.Do)
		}
		var book phonebook
		x := pair{
			p: book.open(t, Config{Name: "p", Shape: shape, TP: tps[0], BlockTokens: blockTokens, Blocks: blocks}),
			d: book.open(t, Config{Name: "d", Shape: shape, TP: tps[1], BlockTokens: blockTokens, Blocks: blocks, Faults: faults}),
		}
		const together = 28
		for at := 0; at < len(requests); at += together {
			var legs []*Sequence
			for _, q := range requests[at : at+together] {
				_, s := x.dispatch(t, q)
				legs = append(legs, s)
			}
			for i, s := range legs {
				q, kind := requests[at+i], kinds[at+i]
				got, err := collect(s)
				if err != nil {
					t.Fatalf("tp %v, request %d: %v", tps, at+i, err)
				}
				if want := alone(t, one, q); slices.Equal(got, want) != (kind == 0) {
					t.Errorf("tp %v, request %d of %d tokens, %v: answered %v; one engine %v", tps, at+i, len(q.Tokens), kind, got, want)
				}
			}
			x.settled(t)
		}
		closeEngine(t, x.d)
		closeEngine(t, x.p)
	}
}

// TestWithheldCompletionKeepsDecodeWaiting leaves out the offer of each prefill rank in turn.
func TestWithheldCompletionKeepsDecodeWaiting(t *testing.T) {
	shape := Shape{Seed: 13, Layers: 2, Heads: 4, HeadDim: 2}
	for _, tps := range [][2]int{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {4, 4}} {
		const seeds = 112 // times 9
		var faults []Fault
		for n := range seeds {
			faults = append(faults, Fault{Leg: PrefillLeg, Nth: n, Do: WithholdOffer, Rank: n % tps[0]})
		}
		var book phonebook
		x := pair{
			p: book.open(t, Config{Name: "p", Shape: shape, TP: tps[0], BlockTokens: 4, Blocks: 2048, Faults: faults}),
			d: book.open(t, Config{Name: "d", Shape: shape, TP: tps[1], BlockTokens: 4, Blocks: 2048}),
		}
		r := rand.New(rand.NewPCG(uint64(tps[0]), uint64(tps[1])))
		var legs []*Sequence
		for range seeds {
			p, d := x.dispatch(t, draw(r))
			legs = append(legs, d)
			if _, err := collect(p); err != nil {
				t.Fatal(err)
			}
		}
		// Whatever could arrive arrives before a whole hand-off that comes later.
		p, d := x.dispatch(t, draw(r))
		for _, s := range []*Sequence{p, d} {
			if _, err := collect(s); err != nil {
				t.Fatal(err)
			}
		}
		if b := x.d.Books(); b.Receiving != seeds {
			t.Errorf("tp %v: %d decode legs wait; want %d", tps, b.Receiving, seeds)
		}
		for n, s := range legs {
			select {
			case o := <-s.Outputs():
				t.Errorf("tp %v, request %d: decode was released: %+v", tps, n, o)
			default:
			}
			x.d.Cancel(s)
		}
		x.settled(t)
		for _, s := range legs {
			if _, err := collect(s); !errors.Is(err, ErrLeft) {
				t.Errorf("tp %v: a decode leg ended in %v; want %v", tps, err, ErrLeft)
			}
		}
		closeEngine(t, x.d)
		closeEngine(t, x.p)
	}
}
