package replay

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
)

// virtualReplay is a fleet that serves a trace in its own time. pdrouter's policies choose among the engines from what is in flight
// with them, as they do in its router; nothing else of a router is there, and nobody waits for a clock. The same trace gives the same
// figures, to the nanosecond, on any machine.
type virtualReplay struct {
	fleet    *sim.ModelFleet
	policy   *policies.Policy
	engines  policies.Fleet // what is in flight, and what is thought to be cached
	index    *prefixes.Index
	holders  []prefixes.Holder // of prefill's engines, then decode's
	pieces   []int32
	chain    []uint64
	draws    *rand.Rand
	turn     uint64
	outcomes []load.Outcome
	whose    map[*sim.ModelSeq]*load.Outcome // of legs that give the client's tokens
	busy     map[*sim.ModelSeq]*virtualLeg
}

// virtualLeg is a leg under way: the engine that it counts with, and the tokens of its prompt until they are computed.
type virtualLeg struct {
	engine *policies.Engine
	unread int
}

// virtually replays a trace on a fleet.
func virtually(f replayFleet, c sim.Costs, budget int, policy string, trace []load.Request) (load.Summary, sim.FleetReading, error) {
	v, err := newVirtual(f, c, budget, policy)
	if err == nil {
		err = v.run(trace)
	}
	if err != nil {
		return load.Summary{}, sim.FleetReading{}, err
	}
	return load.Summarise(v.outcomes, replaySLO), sim.ReadingOf(v.fleet), nil
}

func newVirtual(f replayFleet, c sim.Costs, budget int, policy string) (*virtualReplay, error) {
	by := policies.Role{Policy: policy}
	p, err := policies.New(policies.Config{Default: policies.Choosing{Prefill: by, Decode: by}})
	if err != nil {
		return nil, fmt.Errorf("bench: replay: %w", err)
	}
	v := &virtualReplay{
		fleet: sim.NewModelFleet(true, sim.ModelEngines(c, f.prefill, f.decode, budget)...), policy: p, draws: rand.New(rand.NewPCG(replaySeed, 0)),
		engines: policies.Fleet{Prefill: make([]policies.Engine, f.prefill), Decode: make([]policies.Engine, f.decode)},
		index:   prefixes.New(1 << 18), whose: map[*sim.ModelSeq]*load.Outcome{}, busy: map[*sim.ModelSeq]*virtualLeg{},
	}
	for _, group := range [][]policies.Engine{v.engines.Prefill, v.engines.Decode} {
		for i := range group {
			group[i].Usable = true
			v.holders = append(v.holders, v.index.Join())
		}
	}
	return v, nil
}

// run replays a trace to the end of its last answer.
func (v *virtualReplay) run(trace []load.Request) error {
	v.outcomes = make([]load.Outcome, len(trace))
	for i, t := range trace {
		v.hear(v.fleet.Advance(t.At))
		if err := v.ask(t, &v.outcomes[i]); err != nil {
			return err
		}
	}
	for at, any := v.fleet.Next(); any; at, any = v.fleet.Next() {
		v.hear(v.fleet.Advance(at))
	}
	return nil
}

// ask has a request's legs made, both at once as with push.
func (v *virtualReplay) ask(t load.Request, o *load.Outcome) error {
	o.Arrival = load.Arrival{At: t.At, Prompt: t.Input, Tokens: t.Output}
	o.Sent, o.Status, o.Chunks = t.At, 200, make([]time.Duration, 0, t.Output)
	q := policies.Request{PromptTokens: t.Input}
	if len(v.engines.Prefill) == 0 || t.Output == 1 { // a router has one token made by the engine that reads the prompt
		q.Unsplittable = policies.Aggregated
	}
	v.look(t)
	v.turn++
	choice := v.policy.Choose(q, v.engines, policies.Draw{Turn: v.turn, Random: v.draws.Uint64()})
	last := &sim.ModelSeq{Prompt: t.Input, Answer: t.Output, Hashes: blockHashes(t)}
	v.whose[last] = o
	if choice.Split {
		key := fmt.Sprint(v.turn)
		first := &sim.ModelSeq{Leg: sim.PrefillLeg, Key: key, Prompt: t.Input, Answer: 1, Hashes: last.Hashes}
		last.Leg, last.Key = sim.DecodeLeg, key
		if err := v.submit(first, &v.engines.Prefill[choice.Prefill], choice.Prefill); err != nil {
			return err
		}
	}
	return v.submit(last, &v.engines.Decode[choice.Decode], len(v.engines.Prefill)+choice.Decode)
}

// look says of the engines what they are thought to have of a prompt. A piece is a block of the trace.
func (v *virtualReplay) look(t load.Request) {
	v.chain = v.chain[:0]
	var key prefixes.Key
	for _, id := range t.Blocks[:t.Input/load.TraceBlock] {
		key = v.index.Key(key, strconv.Itoa(id))
		v.chain = append(v.chain, uint64(key))
	}
	v.pieces = v.index.Find(v.chain, v.pieces)
	nth := 0
	for _, group := range [][]policies.Engine{v.engines.Prefill, v.engines.Decode} {
		for i := range group {
			group[i].Cached = load.TraceBlock * int(v.pieces[v.holders[nth]])
			nth++
		}
	}
}

// submit gives a leg to an engine.
func (v *virtualReplay) submit(s *sim.ModelSeq, e *policies.Engine, nth int) error {
	leg := &virtualLeg{engine: e}
	if s.Leg != sim.DecodeLeg {
		leg.unread = s.Prompt - e.Cached
	}
	e.InFlight++
	e.Backlog += leg.unread
	v.busy[s] = leg
	v.index.Note(v.chain, v.holders[nth])
	return v.fleet.Submit(nth, s)
}

// hear notes tokens.
func (v *virtualReplay) hear(told []sim.ModelToken) {
	for _, t := range told {
		if o := v.whose[t.Seq]; o != nil {
			if o.Err = t.Err; o.Err == nil {
				o.Chunks = append(o.Chunks, t.At)
			}
			o.Ended, o.Counted, o.Whole = t.At, len(o.Chunks), t.Last && t.Err == nil
		}
		leg := v.busy[t.Seq]
		leg.engine.Backlog, leg.unread = leg.engine.Backlog-leg.unread, 0
		if t.Last {
			leg.engine.InFlight--
			delete(v.busy, t.Seq)
			delete(v.whose, t.Seq)
		}
	}
}

// blockHashes names the KV blocks of a request's prompt: a trace's ids stand for the text up to their block's end.
func blockHashes(t load.Request) []uint64 {
	const each = load.TraceBlock / sim.BlockTokens
	hashes := make([]uint64, t.Input/sim.BlockTokens)
	for i := range hashes {
		hashes[i] = uint64(t.Blocks[i/each])*each + uint64(i%each)
	}
	return hashes
}

// replaySLO is what a good request keeps.
var replaySLO = load.SLO{Ttft: 2 * time.Second, Tpot: 50 * time.Millisecond}
