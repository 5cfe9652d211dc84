// Package simulate replays a trace on modelled engines (package bench/sim) in their own time, with the code that chooses engines in the gateway:
// policies, policies/forecast and policies/prefixes. There is no other part of a gateway, and no clock: the same trace gives the same figures on
// any machine, to the nanosecond. `pdrouter simulate` and bench/suites/replay call it.
package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/policies"
	"pdrouter/policies/forecast"
	"pdrouter/policies/prefixes"
)

// Layout is how many engines there are of each role. Engines of either role compute prompts for others and give answers.
type Layout struct{ Prefill, Decode, Either int }

// Setup is what a trace is replayed on.
type Setup struct {
	Layout
	Costs  sim.Costs
	Budget int // tokens of a step of an engine that gives answers
	Policy *policies.Policy
	Seed   uint64 // of the choices that are left to chance
}

// Result is what came of a replay.
type Result struct {
	Outcomes []load.Outcome // by request
	Engines  sim.FleetReading
	Split    int       // requests that two engines served
	Errors   []float64 // by which part the time to the first token differs from what was predicted, by request; empty where nothing is
	InFlight int       // legs at the end: 0, or something is wrong
}

// engine is a modelled engine and what a gateway knows of it.
type engine struct {
	nth    int // in the fleet
	holder prefixes.Holder
	known  policies.Engine
	work   *forecast.Engine
	load   policies.Work // when the last request came
}

// leg is a leg under way.
type leg struct {
	engine  *engine
	work    forecast.Leg
	unread  int           // tokens of the prompt that count in the engine's backlog, until they are computed
	outcome *load.Outcome // of the leg that gives the answer
	first   *leg          // the prefill leg before a decode leg
	moved   int           // tokens whose KV comes from there
	ended   time.Duration // of a prefill leg
	ttft    float64       // that was predicted
}

// replay is a replay under way.
type replay struct {
	Setup
	fleet   *sim.ModelFleet
	engines []*engine
	prefill []*engine
	decode  []*engine
	view    policies.Fleet
	model   *forecast.Model
	itl     time.Duration // a gap longer than this is long
	index   *prefixes.Index
	pieces  []int32
	chain   []uint64
	draws   *rand.Rand
	turn    uint64
	legs    map[*sim.ModelSeq]*leg
	result  Result
}

// Replay replays a trace to the end of its last answer.
func Replay(s Setup, trace []load.Request) (Result, error) {
	if s.Decode+s.Either < 1 {
		return Result{}, fmt.Errorf("bench: simulate: %+v; want at least one engine that gives answers", s.Layout)
	}
	r := newReplay(s)
	r.result.Outcomes = make([]load.Outcome, len(trace))
	for i, t := range trace {
		r.advance(t.At)
		if err := r.ask(t, &r.result.Outcomes[i]); err != nil {
			return Result{}, err
		}
	}
	for at, any := r.fleet.Next(); any; at, any = r.fleet.Next() {
		r.advance(at)
	}
	for _, e := range r.engines {
		r.result.InFlight += e.known.InFlight
	}
	r.result.Engines = sim.ReadingOf(r.fleet)
	return r.result, nil
}

func newReplay(s Setup) *replay {
	r := &replay{Setup: s, model: forecast.NewModel(), index: prefixes.New(1 << 18), draws: rand.New(rand.NewPCG(s.Seed, 0)), legs: map[*sim.ModelSeq]*leg{},
		itl:   time.Duration(s.Policy.Objective("").ITL * float64(time.Second)),
		fleet: sim.NewModelFleet(true, sim.ModelEngines(s.Costs, s.Prefill, s.Decode+s.Either, s.Budget)...)}
	for i := range s.Prefill + s.Decode + s.Either {
		e := &engine{nth: i, holder: r.index.Join(), work: r.model.NewEngine(), known: policies.Engine{Name: strconv.Itoa(i), Usable: true}}
		r.engines = append(r.engines, e)
		if i < s.Prefill || i >= s.Prefill+s.Decode {
			r.prefill = append(r.prefill, e)
		}
		if i >= s.Prefill {
			r.decode = append(r.decode, e)
		}
	}
	r.view = policies.Fleet{Prefill: make([]policies.Engine, len(r.prefill)), Decode: make([]policies.Engine, len(r.decode)),
		Forecast: &policies.Forecast{Prefill: make([]policies.Work, len(r.prefill)), Decode: make([]policies.Work, len(r.decode))}}
	r.view.Pairable = func(p, d int) bool { return r.prefill[p] != r.decode[d] }
	return r
}

// advance lets everything happen until a time.
func (r *replay) advance(until time.Duration) {
	for _, t := range r.fleet.Advance(until) {
		r.hear(t)
	}
}

// ask has a request's legs made, both at once as with push.
func (r *replay) ask(t load.Request, o *load.Outcome) error {
	o.Arrival = load.Arrival{At: t.At, Prompt: t.Input, Tokens: t.Output}
	o.Sent, o.Status, o.Chunks = t.At, 200, make([]time.Duration, 0, t.Output)
	q := policies.Request{PromptTokens: t.Input}
	if len(r.prefill) == 0 || t.Output == 1 { // a router has one token made by the engine that reads the prompt
		q.Unsplittable = policies.Aggregated
	}
	now := t.At.Seconds()
	r.model.Arrived(now)
	r.look(t, now)
	r.turn++
	choice := r.Policy.Choose(q, r.view, policies.Draw{Turn: r.turn, Random: r.draws.Uint64()})
	if choice.Decode < 0 {
		return fmt.Errorf("bench: simulate: on %s the policy refuses a prompt of %d tokens (%s); want one that serves every request there", r.Layout, t.Input, choice.Reason)
	}
	decode := r.decode[choice.Decode]
	last := &sim.ModelSeq{Prompt: t.Input, Answer: t.Output, Hashes: blockHashes(t)}
	answer := &leg{engine: decode, outcome: o, ttft: float64(choice.TTFT)}
	if choice.Split {
		r.result.Split++
		key := strconv.FormatUint(r.turn, 10)
		first := &sim.ModelSeq{Leg: sim.PrefillLeg, Key: key, Prompt: t.Input, Answer: 1, Hashes: last.Hashes}
		last.Leg, last.Key = sim.DecodeLeg, key
		answer.moved = t.Input - decode.known.Cached
		answer.first = &leg{engine: r.prefill[choice.Prefill]}
		if err := r.submit(first, answer.first, now); err != nil {
			return err
		}
	}
	return r.submit(last, answer, now)
}

// look notes what is known of the engines and what they are thought to have of a prompt. A piece is a block of the trace.
func (r *replay) look(t load.Request, now float64) {
	r.chain = r.chain[:0]
	var key prefixes.Key
	for _, id := range t.Blocks[:t.Input/load.TraceBlock] {
		key = r.index.Key(key, strconv.Itoa(id))
		r.chain = append(r.chain, uint64(key))
	}
	r.pieces = r.index.Find(r.chain, r.pieces)
	for _, e := range r.engines {
		e.known.Cached, e.load = load.TraceBlock*int(r.pieces[e.holder]), e.work.Work(now)
	}
	for i, e := range r.prefill {
		r.view.Prefill[i], r.view.Forecast.Prefill[i] = e.known, e.load
	}
	for i, e := range r.decode {
		r.view.Decode[i], r.view.Forecast.Decode[i] = e.known, e.load
	}
	r.view.Forecast.Demand = r.model.Demand(now)
}

// submit gives a leg to its engine.
func (r *replay) submit(s *sim.ModelSeq, l *leg, now float64) error {
	e := l.engine
	if s.Leg != sim.DecodeLeg {
		l.unread = s.Prompt - e.known.Cached
	}
	e.known.InFlight++
	e.known.Backlog += l.unread
	e.work.Begin(&l.work, now, s.Prompt, l.unread, l.outcome != nil, false)
	r.legs[s] = l
	r.index.Note(r.chain, e.holder)
	return r.fleet.Submit(e.nth, s)
}

// hear notes a token.
func (r *replay) hear(t sim.ModelToken) {
	l, now := r.legs[t.Seq], t.At.Seconds()
	e := l.engine
	e.known.Backlog, l.unread = e.known.Backlog-l.unread, 0
	e.work.FirstToken(&l.work, now)
	if l.outcome != nil {
		r.answered(l, t)
	}
	if t.Last {
		l.ended = t.At
		e.known.InFlight--
		e.work.End(&l.work, now)
		delete(r.legs, t.Seq)
	}
}

// answered notes a token of an answer.
func (r *replay) answered(l *leg, t sim.ModelToken) {
	o, now := l.outcome, t.At.Seconds()
	if o.Err = t.Err; o.Err == nil {
		o.Chunks = append(o.Chunks, t.At)
	}
	o.Ended, o.Counted, o.Whole = t.At, len(o.Chunks), t.Last && t.Err == nil
	switch n := len(o.Chunks); {
	case t.Err != nil:
	case n == 1:
		took := (t.At - o.At).Seconds()
		r.model.Predicted(l.ttft, took)
		if l.ttft > 0 {
			r.result.Errors = append(r.result.Errors, math.Abs(l.ttft-took)/took)
		}
		if l.first != nil {
			r.model.Moved(l.moved, (t.At - l.first.ended).Seconds())
		}
	default:
		if gap := t.At - o.Chunks[n-2]; gap > r.itl {
			l.engine.work.Said(&l.work, now, 1, 0, 0, 1)
		} else {
			l.engine.work.Said(&l.work, now, 1, 1, gap.Seconds(), 0)
		}
	}
	if t.Last {
		r.model.Answered(len(o.Chunks))
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
