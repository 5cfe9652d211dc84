package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"pdrouter/policies"
	"pdrouter/policies/prefixes"
)

// virtualReplay is a fleet that serves a trace in its own time. pdrouter's policies choose among the engines from what is in flight
// with them, as they do in its router; nothing else of a router is there, and nobody waits for a clock. The same trace gives the same
// figures, to the nanosecond, on any machine.
type virtualReplay struct {
	fleet    *modelFleet
	policy   *policies.Policy
	engines  policies.Fleet // what is in flight, and what is thought to be cached
	index    *prefixes.Index
	holders  []prefixes.Holder // of prefill's engines, then decode's
	pieces   []int32
	chain    []uint64
	draws    *rand.Rand
	turn     uint64
	outcomes []outcome
	whose    map[*modelSeq]*outcome // of legs that give the client's tokens
	busy     map[*modelSeq]*virtualLeg
}

// virtualLeg is a leg under way: the engine that it counts with, and the tokens of its prompt until they are computed.
type virtualLeg struct {
	engine *policies.Engine
	unread int
}

// virtually replays a trace on a fleet.
func virtually(f replayFleet, c costs, budget int, policy string, trace []traced) (summary, fleetReading, error) {
	v, err := newVirtual(f, c, budget, policy)
	if err == nil {
		err = v.run(trace)
	}
	if err != nil {
		return summary{}, fleetReading{}, err
	}
	return summarise(v.outcomes, replaySLO), readingOf(v.fleet), nil
}

func newVirtual(f replayFleet, c costs, budget int, policy string) (*virtualReplay, error) {
	by := policies.Role{Policy: policy}
	p, err := policies.New(policies.Config{Default: policies.Choosing{Prefill: by, Decode: by}})
	if err != nil {
		return nil, fmt.Errorf("bench: replay: %w", err)
	}
	v := &virtualReplay{
		fleet: newModelFleet(true, modelEngines(c, f.prefill, f.decode, budget)...), policy: p, draws: rand.New(rand.NewPCG(replaySeed, 0)),
		engines: policies.Fleet{Prefill: make([]policies.Engine, f.prefill), Decode: make([]policies.Engine, f.decode)},
		index:   prefixes.New(1 << 18), whose: map[*modelSeq]*outcome{}, busy: map[*modelSeq]*virtualLeg{},
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
func (v *virtualReplay) run(trace []traced) error {
	v.outcomes = make([]outcome, len(trace))
	for i, t := range trace {
		v.hear(v.fleet.advance(t.at))
		if err := v.ask(t, &v.outcomes[i]); err != nil {
			return err
		}
	}
	for at, any := v.fleet.next(); any; at, any = v.fleet.next() {
		v.hear(v.fleet.advance(at))
	}
	return nil
}

// ask has a request's legs made, both at once as with push.
func (v *virtualReplay) ask(t traced, o *outcome) error {
	o.arrival = arrival{at: t.at, prompt: t.input, tokens: t.output}
	o.sent, o.status, o.chunks = t.at, 200, make([]time.Duration, 0, t.output)
	q := policies.Request{PromptTokens: t.input}
	if len(v.engines.Prefill) == 0 || t.output == 1 { // a router has one token made by the engine that reads the prompt
		q.Unsplittable = policies.Aggregated
	}
	v.look(t)
	v.turn++
	choice := v.policy.Choose(q, v.engines, policies.Draw{Turn: v.turn, Random: v.draws.Uint64()})
	last := &modelSeq{prompt: t.input, answer: t.output, hashes: blockHashes(t)}
	v.whose[last] = o
	if choice.Split {
		key := fmt.Sprint(v.turn)
		first := &modelSeq{leg: prefillLeg, key: key, prompt: t.input, answer: 1, hashes: last.hashes}
		last.leg, last.key = decodeLeg, key
		if err := v.submit(first, &v.engines.Prefill[choice.Prefill], choice.Prefill); err != nil {
			return err
		}
	}
	return v.submit(last, &v.engines.Decode[choice.Decode], len(v.engines.Prefill)+choice.Decode)
}

// look says of the engines what they are thought to have of a prompt. A piece is a block of the trace.
func (v *virtualReplay) look(t traced) {
	v.chain = v.chain[:0]
	var key prefixes.Key
	for _, id := range t.blocks[:t.input/traceBlock] {
		key = v.index.Key(key, strconv.Itoa(id))
		v.chain = append(v.chain, uint64(key))
	}
	v.pieces = v.index.Find(v.chain, v.pieces)
	nth := 0
	for _, group := range [][]policies.Engine{v.engines.Prefill, v.engines.Decode} {
		for i := range group {
			group[i].Cached = traceBlock * int(v.pieces[v.holders[nth]])
			nth++
		}
	}
}

// submit gives a leg to an engine.
func (v *virtualReplay) submit(s *modelSeq, e *policies.Engine, nth int) error {
	leg := &virtualLeg{engine: e}
	if s.leg != decodeLeg {
		leg.unread = s.prompt - e.Cached
	}
	e.InFlight++
	e.Backlog += leg.unread
	v.busy[s] = leg
	v.index.Note(v.chain, v.holders[nth])
	return v.fleet.submit(nth, s)
}

// hear notes tokens.
func (v *virtualReplay) hear(told []modelToken) {
	for _, t := range told {
		if o := v.whose[t.seq]; o != nil {
			if o.err = t.err; o.err == nil {
				o.chunks = append(o.chunks, t.at)
			}
			o.ended, o.counted, o.whole = t.at, len(o.chunks), t.last && t.err == nil
		}
		leg := v.busy[t.seq]
		leg.engine.Backlog, leg.unread = leg.engine.Backlog-leg.unread, 0
		if t.last {
			leg.engine.InFlight--
			delete(v.busy, t.seq)
			delete(v.whose, t.seq)
		}
	}
}

// blockHashes names the KV blocks of a request's prompt: a trace's ids stand for the text up to their block's end.
func blockHashes(t traced) []uint64 {
	const each = traceBlock / blockTokens
	hashes := make([]uint64, t.input/blockTokens)
	for i := range hashes {
		hashes[i] = uint64(t.blocks[i/each])*each + uint64(i%each)
	}
	return hashes
}

// readingOf sums up what engines have done.
func readingOf(f *modelFleet) fleetReading {
	r := fleetReading{Prompts: f.prompts, Possible: f.possible}
	for _, e := range f.engines {
		r.Found += e.found
		r.Steps = append(r.Steps, e.steps)
	}
	return r
}

// replaySLO is what a good request keeps.
var replaySLO = slo{ttft: 2 * time.Second, tpot: 50 * time.Millisecond}
