package refengine

import (
	"fmt"
	"slices"
	"time"
)

// admit gives blocks to waiting sequences, in their order, while there are any. A sequence gets at once all the
// blocks it can ever need, so none that runs has to be put back.
func (e *Engine) admit() {
	for len(e.waiting) > 0 && len(e.running) < e.cfg.MaxRunning {
		s := e.waiting[0]
		if !e.reserve(s) {
			return
		}
		e.waiting = e.waiting[1:]
		switch s.req.Leg {
		case DecodeLeg:
			s.state = receiving
			e.expect(s)
			continue
		case ImportLeg:
			s.state = receiving
			e.fetch(s)
			continue
		case ExportLeg:
			if s.req.From.Engine != "" {
				s.state = receiving
				e.fetch(s)
				continue
			}
		}
		s.state = running
		e.running = append(e.running, s)
		e.counts.prompt[sourceCache] += uint64(s.cached)
	}
}

// reserve takes the blocks of a sequence: those found in the prefix cache, and free ones. A prompt that is computed
// here keeps at least one token to compute, since its answer comes from the last token's state.
func (e *Engine) reserve(s *Sequence) bool {
	n, size := len(s.req.Tokens), e.cfg.BlockTokens
	if e.cfg.PrefixCache {
		limit := len(s.hashes)
		if s.req.Leg != DecodeLeg && s.req.Leg != ImportLeg {
			limit = (n - 1) / size
		}
		s.table = e.pool.match(s.hashes[:min(limit, len(s.hashes))])
	}
	s.cached = len(s.table) * size
	s.computed = s.cached
	more, ok := e.pool.take((n+s.req.MaxTokens-1+size-1)/size - len(s.table))
	if !ok {
		e.pool.release(s.table)
		s.table, s.cached, s.computed = nil, 0, 0
		return false
	}
	s.table = append(s.table, more...)
	return true
}

// compute runs one step if there is something to compute, and reports whether its results are in already.
func (e *Engine) compute() bool {
	e.admit()
	e.noteAdapters()
	e.queue()
	e.tell() // before a step that may take long
	budget, prompt := e.cfg.MaxStep, 0
	answers := false
	var step []entry
	var items []item
	for _, s := range e.running {
		fresh := s.answered() == 0 && !s.stored
		it, ok := s.work(e.model, budget)
		if !ok {
			continue
		}
		if fresh {
			budget -= len(it.states)
			prompt += len(it.states)
		} else {
			answers = true
		}
		if s.times.Began.IsZero() {
			s.times.Began = time.Now()
		}
		step = append(step, entry{s, it})
		items = append(items, it)
	}
	if len(step) == 0 {
		return false
	}
	e.group.forward(items)
	if err := e.group.sync(); err != nil { // what was computed must be in memory before it is offered
		for _, en := range step {
			e.abort(en.seq, fmt.Errorf("%w: %w", ErrMemory, err), "memory failed")
		}
		return true
	}
	for _, en := range step {
		e.computed(en)
	}
	e.step = step
	e.counts.prompt[sourceCompute] += uint64(prompt)
	e.counts.steps++
	cost := time.Duration(prompt) * e.cfg.PrefillCost
	if answers {
		cost += e.cfg.DecodeCost
	}
	if cost > 0 {
		e.cost.Reset(cost)
		return false
	}
	e.deliver()
	return true
}

// computed notes that a step's KV is in memory.
func (e *Engine) computed(en entry) {
	s := en.seq
	if s.stored {
		return
	}
	s.computed += len(en.item.states)
	e.remember(s)
}

// remember lets later prompts find the full blocks of this sequence, prompt and answer, that are in memory.
func (e *Engine) remember(s *Sequence) {
	if !e.cfg.PrefixCache {
		return
	}
	for size := e.cfg.BlockTokens; (len(s.hashes)+1)*size <= s.computed; {
		n := len(s.hashes)
		s.hashes = append(s.hashes, follow(s.parent(), s.tokens[n*size:(n+1)*size]))
	}
	for i, h := range s.hashes[:min(len(s.hashes), s.computed/e.cfg.BlockTokens)] {
		e.pool.remember(s.table[i], h)
	}
}

// deliver hands out the tokens of the step that is over.
func (e *Engine) deliver() {
	step := e.step
	e.step = nil
	for _, en := range step {
		s := en.seq
		if s.state != running || s.computed < len(s.tokens) {
			continue // ended meanwhile, or more of the prompt to come
		}
		s.stored = false
		e.emit(s, &en.item.states[len(en.item.states)-1])
	}
}

// emit chooses the next token of a sequence from its last state.
func (e *Engine) emit(s *Sequence, h *hidden) {
	t := e.model.pick(h, !s.req.IgnoreEnd && s.answered() >= s.req.MinTokens)
	e.counts.generated++
	if s.times.First.IsZero() {
		if s.times.First = time.Now(); e.cfg.Timed != nil {
			e.cfg.Timed(s.times)
		}
	}
	if t == tokenEnd {
		e.finish(s, Output{Token: -1, Finish: FinishStop})
		return
	}
	s.tokens = append(s.tokens, t)
	if s.answered() == s.req.MaxTokens {
		e.finish(s, Output{Token: t, Finish: FinishLength})
		return
	}
	s.out <- Output{Token: t}
}

// finish ends a sequence that has its whole answer. A prefill leg's blocks are offered to the other engine and stay.
func (e *Engine) finish(s *Sequence, last Output) {
	e.drop(s)
	s.state = done
	e.counts.finished[string(last.Finish)]++
	switch {
	case s.req.Leg == PrefillLeg:
		e.offer(s)
	case s.req.Leg == ExportLeg && last.Finish == FinishLength, s.req.Leg == ImportLeg && e.cfg.Bidirectional:
		e.export(s)
	default:
		e.pool.release(s.table)
		s.table = nil
	}
	s.out <- last
}

// abort ends a sequence without its answer, wherever it is.
func (e *Engine) abort(s *Sequence, err error, why string) {
	if s.state == done {
		return
	}
	was := s.state
	s.state = done
	e.drop(s)
	e.counts.finished["abort"]++
	switch {
	case was == receiving && s.req.From.Engine != "": // its blocks come back when the copy is here
	case was == receiving:
		e.giveUp(s, why) // its blocks come back when nothing can land in them
	default:
		e.abandon(s, why)
		e.pool.release(s.table)
		s.table = nil
	}
	s.out <- Output{Token: -1, Err: err}
}

// drop takes a sequence out of whatever list it is in.
func (e *Engine) drop(s *Sequence) {
	delete(e.hanging, s)
	is := func(o *Sequence) bool { return o == s }
	e.waiting = slices.DeleteFunc(e.waiting, is)
	e.running = slices.DeleteFunc(e.running, is)
}
