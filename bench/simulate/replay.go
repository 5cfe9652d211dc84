// Package simulate replays a trace, or conversations, on modelled engines (package bench/sim) in their own time, with the code that decides in the gateway:
// policies, policies/forecast and policies/prefixes choose engines, router/migration what KV is moved. There is no other part of a gateway, and no
// clock: the same trace gives the same figures on any machine, to the nanosecond. `pdrouter simulate` and bench/suites/replay call it.
//
// Read replay.go first. sweep.go sums traces up, and conversation_sweep.go conversations: conversations.go replays them, conversation_changes.go has
// engines come and go, and conversation_moves.go carries out moves.
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
	"pdrouter/router/admission"
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
	SLO    load.SLO
	Queue  bool                               // requests wait in front of the engines, as with by_objective of the queue
	Ended  func(request int, o *load.Outcome) // called when an answer has ended, if it is not nil. It keeps nothing of the outcome
}

// Result is what came of a replay.
type Result struct {
	load.Summary
	Engines  sim.FleetReading
	Split    int       // requests that two engines served
	Errors   []float64 // by which part the time to the first token differs from what was predicted, by request; empty where nothing is
	InFlight int       // legs at the end: 0, or something is wrong
	Refused  int       // requests that waited too long, with Queue
	Refusals []Refusal // some of those, evenly
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
	seq     *sim.ModelSeq
	begun   bool          // it has had a token
	unread  int           // tokens of the prompt that count in the engine's backlog, until they are computed
	outcome *load.Outcome // of the leg that gives the answer
	nth     int           // of the request
	first   *leg          // the prefill leg before a decode leg
	moved   int           // tokens whose KV comes from there
	ended   time.Duration // of a prefill leg
	ttft    float64       // that was predicted
	given   time.Duration // to its engines
	slot    admission.Slot

	// Of a decode leg that is handed its prompt: until it has it, its engine keeps room for it.
	chain    []uint64
	reserved prefixes.Reserved
}

// replay is a replay under way.
type replay struct {
	Setup
	fleet         *sim.ModelFleet
	engines       []*engine
	prefill       []*engine
	decode        []*engine
	view          policies.Fleet
	model         *forecast.Model
	itl           float64 // seconds; a token that comes so long after another is late
	index         *prefixes.Index
	pieces        []int32
	chain         []uint64
	chains        [][]uint64 // of legs that have their prompts, to be used again
	ends          []prefixes.End
	draws         *rand.Rand
	turn          uint64
	tally         *load.Tally
	times         [][]time.Duration // of outcomes that have ended, to be used again
	result        Result
	queue         *queue         // nil: there is none
	conversations *conversations // nil: a trace is replayed

	kept   int           // the request of the trace that is not refused however long it waits; -1: none
	wentOn time.Duration // when that went to engines
}

// Replay replays a trace to the end of its last answer.
func Replay(s Setup, trace []load.Request) (Result, error) {
	if s.Decode+s.Either < 1 {
		return Result{}, fmt.Errorf("bench: simulate: %+v; want at least one engine that gives answers", s.Layout)
	}
	r := newReplay(s)
	if err := r.arrive(trace, never); err != nil {
		return Result{}, err
	}
	for at, any := r.next(); any; at, any = r.next() {
		if err := r.advance(at); err != nil {
			return Result{}, err
		}
	}
	for _, e := range r.engines {
		r.result.InFlight += e.known.InFlight
	}
	if err := r.lookAtRefusals(trace); err != nil {
		return Result{}, err
	}
	r.result.Engines, r.result.Summary = sim.ReadingOf(r.fleet), r.tally.Summary()
	if n := r.result.Asked; n != len(trace) {
		return Result{}, fmt.Errorf("bench: simulate: %w: %d of %d answers have not ended", load.ErrVoid, len(trace)-n, len(trace))
	}
	return r.result, nil
}

// arrive has the trace's requests come, up to a time.
func (r *replay) arrive(trace []load.Request, until time.Duration) error {
	for i, t := range trace {
		if t.At > until {
			break
		}
		if err := r.advance(t.At); err != nil {
			return err
		}
		if err := r.ask(i, t); err != nil {
			return err
		}
	}
	return nil
}

func newReplay(s Setup) *replay {
	r := &replay{Setup: s, kept: -1, model: forecast.NewModel(), index: prefixes.New(1 << 18), draws: rand.New(rand.NewPCG(s.Seed, 0)), tally: load.NewTally(s.SLO),
		itl:   s.Policy.Objective("").ITL,
		fleet: sim.NewModelFleet(true, sim.ModelEngines(s.Costs, s.Prefill, s.Decode+s.Either, s.Budget)...)}
	for i := range s.Prefill + s.Decode + s.Either {
		e := &engine{nth: i, holder: r.index.Join(s.Costs.Blocks * sim.BlockTokens), work: r.model.NewEngine(), known: policies.Engine{Name: strconv.Itoa(i), Usable: true}}
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
	r.view.Forecast.Pairs = r
	if s.Queue {
		r.queue = newQueue(r)
	}
	r.view.Pairable = func(p, d int) bool { return r.prefill[p] != r.decode[d] }
	return r
}

// next is when something happens next, if anything does.
func (r *replay) next() (time.Duration, bool) {
	at, any := r.fleet.Next()
	if r.queue != nil && r.queue.next() < never && (!any || r.queue.next() < at) {
		return r.queue.next(), true
	}
	return at, any
}

// advance lets everything happen until a time: all at once, or step by step where there is a queue.
func (r *replay) advance(until time.Duration) error {
	if r.queue == nil {
		r.listen(until)
		return nil
	}
	for at, any := r.next(); any && at <= until; at, any = r.next() {
		r.listen(at)
		if err := r.queue.pass(at); err != nil {
			return err
		}
	}
	r.listen(until)
	return nil
}

func (r *replay) listen(until time.Duration) {
	if r.queue != nil {
		r.queue.now = until
	}
	for _, t := range r.fleet.Advance(until) {
		r.hear(t)
	}
}

// request is what the policy may know of a request.
func (r *replay) request(t load.Request) policies.Request {
	q := policies.Request{PromptTokens: t.Input}
	if len(r.prefill) == 0 || t.Output == 1 { // a router has one token made by the engine that reads the prompt
		q.Unsplittable = policies.Aggregated
	}
	return q
}

// ask takes a request in.
func (r *replay) ask(nth int, t load.Request) error {
	if r.queue != nil {
		return r.queue.arrive(nth, t)
	}
	return r.give(nth, t, t.At, admission.Slot{})
}

// give has a request's legs made at a time, both at once as with push.
func (r *replay) give(nth int, t load.Request, at time.Duration, slot admission.Slot) error {
	r.model.Arrived(at.Seconds())
	r.look(t, at.Seconds())
	choice, err := r.choose(t)
	if err != nil {
		return err
	}
	_, err = r.send(nth, t, r.outcome(t), choice, at, slot)
	return err
}

// outcome is that of a request that comes.
func (r *replay) outcome(t load.Request) *load.Outcome {
	o := &load.Outcome{Arrival: load.Arrival{At: t.At, Prompt: t.Input, Tokens: t.Output}, Sent: t.At, Status: 200}
	if n := len(r.times); n > 0 {
		o.Chunks, r.times = r.times[n-1][:0], r.times[:n-1]
	}
	return o
}

// choose chooses the engines of a request that look has looked for.
func (r *replay) choose(t load.Request) (policies.Choice, error) {
	r.turn++
	choice := r.Policy.Choose(r.request(t), r.view, policies.Draw{Turn: r.turn, Random: r.draws.Uint64()})
	if choice.Decode < 0 {
		return choice, fmt.Errorf("bench: simulate: on %s the policy refuses a prompt of %d tokens (%s); want one that serves every request there", r.Layout, t.Input, choice.Reason)
	}
	return choice, nil
}

// send makes a request's legs, and returns the one that answers.
func (r *replay) send(nth int, t load.Request, o *load.Outcome, choice policies.Choice, at time.Duration, slot admission.Slot) (*leg, error) {
	now := at.Seconds()
	decode := r.decode[choice.Decode]
	last := &sim.ModelSeq{Prompt: t.Input, Answer: t.Output, Runs: runsOf(t, t.Input)}
	if r.conversations != nil { // the next turn has the answer in its prompt
		last.Runs = runsOf(t, t.Input+t.Output-1)
	}
	answer := &leg{engine: decode, nth: nth, outcome: o, ttft: float64(choice.TTFT), given: at, slot: slot}
	if choice.Split {
		r.result.Split++
		key := strconv.FormatUint(r.turn, 10)
		first := &sim.ModelSeq{Leg: sim.PrefillLeg, Key: key, Prompt: t.Input, Answer: 1, Runs: last.Runs}
		last.Leg, last.Key = sim.DecodeLeg, key
		answer.moved = t.Input - decode.known.Cached
		answer.first = &leg{engine: r.prefill[choice.Prefill]}
		if err := r.submit(first, answer.first, now); err != nil {
			return nil, err
		}
	}
	if err := r.submit(last, answer, now); err != nil {
		return nil, err
	}
	answer.slot.Begun()
	return answer, nil
}

// HandOff is how many times as long as in the mean a hand-off from one engine to another takes.
func (r *replay) HandOff(p, d int) float64 {
	return r.model.HandOff(r.prefill[p].work, r.decode[d].work)
}

// submit gives a leg to its engine.
func (r *replay) submit(s *sim.ModelSeq, l *leg, now float64) error {
	e := l.engine
	if s.Leg != sim.DecodeLeg {
		l.unread = s.Prompt - e.known.Cached
	}
	l.seq = s
	e.known.InFlight++
	e.known.Backlog += l.unread
	l.work = forecast.Leg{Prompt: s.Prompt, Uncached: l.unread, Answers: l.outcome != nil, Late: r.itl}
	e.work.Begin(&l.work, now)
	s.Owner = l
	if s.Leg == sim.DecodeLeg {
		if n := len(r.chains); n > 0 {
			l.chain, r.chains = r.chains[n-1][:0], r.chains[:n-1]
		}
		l.chain, l.reserved = append(l.chain, r.chain...), r.index.Reserve(e.holder, s.Prompt-e.known.Cached)
	} else {
		r.note(r.chain, e)
	}
	return r.fleet.Submit(e.nth, s)
}

// hear notes a token.
func (r *replay) hear(t sim.ModelToken) {
	l, ok := t.Seq.Owner.(*leg)
	if !ok {
		r.conversations.heard(t)
		return
	}
	e, now, first := l.engine, t.At.Seconds(), !l.begun
	if l.begun = true; first {
		e.known.Backlog, l.unread = e.known.Backlog-l.unread, 0
		e.work.FirstToken(&l.work, now)
	} else {
		e.work.Said(&l.work, now, 1)
	}
	if l.outcome != nil {
		r.answered(l, t, first)
	}
	if t.Last {
		l.ended = t.At
		e.known.InFlight--
		e.work.End(&l.work, now)
	}
}

// answered notes a token of an answer.
func (r *replay) answered(l *leg, t sim.ModelToken, first bool) {
	o := l.outcome
	if o.Err = t.Err; o.Err == nil {
		o.Chunks = append(o.Chunks, t.At)
		if first {
			r.begun(l, t.At)
		}
	}
	if t.Last {
		o.Ended, o.Counted, o.Whole = t.At, len(o.Chunks), t.Err == nil
		l.slot.Release(admission.Used{Computed: o.Prompt, Output: len(o.Chunks)}, wall(t.At))
		r.model.Answered(len(o.Chunks))
		if r.tally.Add(o); r.Ended != nil {
			r.Ended(l.nth, o)
		}
		if r.conversations != nil {
			r.conversations.ended(l)
		}
		r.times = append(r.times, o.Chunks)
	}
}

// begun notes the first token of an answer.
func (r *replay) begun(l *leg, at time.Duration) {
	took := (at - l.given).Seconds()
	r.model.Predicted(l.ttft, took)
	if l.ttft > 0 {
		r.result.Errors = append(r.result.Errors, math.Abs(l.ttft-took)/took)
	}
	if l.first != nil {
		r.index.Return(l.reserved)
		r.note(l.chain, l.engine)
		l.chain, r.chains = nil, append(r.chains, l.chain)
		r.model.Moved(at.Seconds(), l.first.engine.work, l.engine.work, l.moved, (at - l.first.ended).Seconds())
	}
}

// runsOf names the KV blocks of the first tokens of a request: a trace's ids stand for the text up to their block's end.
func runsOf(t load.Request, tokens int) []sim.Run {
	const each = load.TraceBlock / sim.BlockTokens
	runs := make([]sim.Run, 0, len(t.Blocks))
	for left := tokens / sim.BlockTokens; left > 0; left -= each {
		runs = append(runs, sim.Run{ID: uint64(t.Blocks[len(runs)]), Blocks: min(left, each)})
	}
	return runs
}
