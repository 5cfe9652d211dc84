package sim

import (
	"slices"
	"time"
)

// ModelLeg is what a request asks of a modelled engine.
type ModelLeg uint8

const (
	wholeLeg   ModelLeg = iota
	PrefillLeg          // its KV stays for decode, under the request's key
	DecodeLeg           // its KV comes from prefill
)

// ModelSeq is one request at a modelled engine.
type ModelSeq struct {
	Leg    ModelLeg
	Key    string // of the hand-off that the leg takes part in
	Prompt int    // tokens
	Answer int    // tokens
	Runs   []Run  // the full blocks of the prompt, and of the answer if others are to find these
	Owner  any    // whoever submits it may keep something here

	engine   *modelEngine
	kv       kvHeld
	cached   int // tokens of the prompt that were in the prefix cache
	computed int // tokens of the prompt that are in memory
	said     int // tokens of the answer
	state    modelState
	out      chan ModelToken // what the server hears
	over     *modelHandover  // of a decode leg
}

// modelState is where a request is in its life.
type modelState uint8

const (
	seqAdmitting modelState = iota // the scheduler does not have it yet
	seqWaiting                     // for a place, or for blocks
	seqReceiving                   // it has blocks and waits for its KV
	seqRunning
	seqHolding // a prefill leg that is answered: its blocks wait for decode
	seqDone
)

// ModelToken is a token of an answer, or its end.
type ModelToken struct {
	Seq  *ModelSeq
	At   time.Duration
	nth  int // of its answer, from 1
	Last bool
	Err  error
}

// modelEngine is a modelled engine's scheduler: continuous batching as vLLM has it. A step gives a token to every request
// that decodes, and what is left of its budget of tokens to prompts in their order; a prompt that does not fit is continued in the
// next step. A request gets all blocks that it can need when it is let in, so that none has to be put back.
type modelEngine struct {
	costs   Costs
	budget  int // tokens of a step
	most    int // requests that run
	pool    *kvPool
	waiting []*ModelSeq
	running []*ModelSeq
	coming  int           // requests that wait for their KV
	parts   []Part        // of the step under way; empty: none
	said    []*ModelSeq   // that had a token of the last step
	link    time.Duration // when its link is free

	short   *ModelSeq // the first that waits, if there were too few blocks for it
	shortAt int       // the pool's changes then

	asked, found int // tokens of prompts that were looked for in the prefix cache, and found
	steps        int
}

// mostRunning is vLLM's default for --max-num-seqs on this kind of engine.
const mostRunning = 256

func newModelEngine(c Costs, budget int) *modelEngine {
	return &modelEngine{costs: c, budget: budget, most: mostRunning, pool: newKVPool(c.Blocks)}
}

// need is how many blocks a request can need.
func (s *ModelSeq) need() int { return (s.Prompt + s.Answer - 1 + BlockTokens - 1) / BlockTokens }

// named is how many of the first blocks of so many tokens others can find.
func (s *ModelSeq) named(tokens int) int {
	n := 0
	for _, r := range s.Runs {
		n += r.Blocks
	}
	return min(n, tokens/BlockTokens)
}

// let gives places and blocks to waiting requests in their order, and returns those that were let in.
func (e *modelEngine) let() []*ModelSeq {
	n := 0
	for _, s := range e.waiting {
		if len(e.running)+e.coming >= e.most || s == e.short && e.shortAt == e.pool.changes {
			break
		}
		most := s.Prompt / BlockTokens
		if s.Leg != DecodeLeg { // the answer comes of the last token's state, so that one is computed
			most = (s.Prompt - 1) / BlockTokens
		}
		var ok bool
		if s.kv, ok = e.pool.take(s.Runs, most, s.need()); !ok {
			e.short, e.shortAt = s, e.pool.changes
			break
		}
		s.cached = s.kv.blocks * BlockTokens
		s.computed = s.cached
		if s.Leg == DecodeLeg {
			s.state = seqReceiving
			e.coming++
		} else {
			s.state = seqRunning
			e.running = append(e.running, s)
			e.asked += s.Prompt
			e.found += s.cached
		}
		n++
	}
	let := slices.Clone(e.waiting[:n])
	e.waiting = slices.Delete(e.waiting, 0, n)
	return let
}

// received puts a request that has its KV among those that decode.
func (e *modelEngine) received(s *ModelSeq) {
	e.coming--
	s.computed = s.Prompt
	s.state = seqRunning
	e.pool.remember(&s.kv, s.Runs, s.named(s.Prompt))
	e.running = append(e.running, s)
}

// begin starts a step if none is under way and there is something to do, and says what it takes.
func (e *modelEngine) begin() (time.Duration, bool) {
	if len(e.parts) > 0 {
		return 0, false
	}
	budget := e.budget
	for _, s := range e.running {
		if s.computed == s.Prompt {
			e.parts = append(e.parts, Part{seq: s, N: 1, Context: s.Prompt + s.said})
			budget--
		}
	}
	for _, s := range e.running {
		if budget == 0 {
			break
		}
		if n := min(budget, s.Prompt-s.computed); n > 0 {
			e.parts = append(e.parts, Part{seq: s, N: n, Context: s.computed, Prefill: true})
			budget -= n
		}
	}
	if len(e.parts) == 0 {
		return 0, false
	}
	e.steps++
	return e.costs.StepTime(e.parts), true
}

// end ends the step under way, and returns the requests that have a token of it, until the next call.
func (e *modelEngine) end() []*ModelSeq {
	parts, said := e.parts, e.said[:0]
	e.parts = e.parts[:0]
	for _, p := range parts {
		s := p.seq
		if s.state != seqRunning {
			continue // it was ended meanwhile
		}
		if p.Prefill {
			s.computed += p.N
			e.pool.remember(&s.kv, s.Runs, s.named(s.computed))
			if s.computed < s.Prompt {
				continue
			}
		}
		said = append(said, s)
		if s.said++; s.said < s.Answer {
			continue
		}
		e.running = slices.DeleteFunc(e.running, func(o *ModelSeq) bool { return o == s })
		if s.Leg == PrefillLeg {
			s.state = seqHolding
		} else {
			s.state = seqDone
			e.pool.remember(&s.kv, s.Runs, s.named(s.Prompt+s.said-1)) // the KV of an answer's last token is not computed
			e.pool.release(&s.kv)
		}
	}
	e.said = said
	return said
}
