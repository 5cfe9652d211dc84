package router

import (
	"sync"
	"sync/atomic"

	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/openai"
)

// prompts is what all that look for prompts share. It outlives a reload.
type prompts struct {
	index atomic.Pointer[prefixes.Index] // of the present configuration
	rooms sync.Pool                      // of *prompt
}

// looking notes which models' policies look at prefixes, and returns the index for them, was if its size is the same; nil if there are
// none.
func (f *fleet) looking(size int, was *prefixes.Index) *prefixes.Index {
	planner, can := f.planner.(interface {
		Prefixes(model string) (prefill, decode bool)
	})
	if !can {
		return nil
	}
	any := false
	for _, m := range f.models {
		m.looks[prefillRole], m.looks[decodeRole] = planner.Prefixes(m.name)
		any = any || m.looks != [roles]bool{}
	}
	switch {
	case !any:
		return nil
	case was != nil && was.Bound() == size:
		return was
	default:
		return prefixes.New(size)
	}
}

// held is one run of an engine as the index knows it.
type held struct {
	index      *prefixes.Index
	holder     prefixes.Holder
	generation uint64
}

// gone stands for an engine that is not of the configuration any more: it gets no place in the index.
var gone = new(held)

// holds returns as what the index knows the engine's present run, nil if it does not.
func (e *engine) holds(x *prefixes.Index) *held {
	if h := e.held.Load(); h != nil && h.index == x && h.generation == e.generation.Load() {
		return h
	}
	return nil
}

// hold has the index know the engine's present run; nil if it is to know none.
func (e *engine) hold(x *prefixes.Index) *held {
	if h := e.holds(x); h != nil {
		return h
	}
	was := e.held.Load()
	if was == gone {
		return nil
	}
	h := &held{index: x, holder: x.Join(), generation: e.generation.Load()}
	if !e.held.CompareAndSwap(was, h) { // another was first
		x.Leave(h.holder)
		return e.holds(x)
	}
	was.leave()
	return h
}

// forget has the index forget what the engine has. then is gone, or nil if it is to be asked again.
func (e *engine) forget(then *held) { e.held.Swap(then).leave() }

func (h *held) leave() {
	if h != nil && h.index != nil {
		h.index.Leave(h.holder)
	}
}

// prompt is a request's prompt as it is looked for.
type prompt struct {
	index  *prefixes.Index
	tokens int
	bytes  int
	chain  []uint64
	pieces []int32 // of the chain, that each holder has
}

// ask looks for the request's prompt, if the model's policy looks at that.
func (k *look) ask(b *openai.Body) {
	if k.f.index == nil || k.m.looks == [roles]bool{} {
		return
	}
	if k.prompt == nil {
		k.prompt, _ = k.f.prompts.rooms.Get().(*prompt)
		if k.prompt == nil {
			k.prompt = new(prompt)
		}
		k.prompt.read(k.f.index, b)
	}
	k.prompt.pieces = k.prompt.index.Find(k.prompt.chain, k.prompt.pieces)
}

// Cached is how many tokens of the prompt that was looked for an engine is thought to have.
func (k *look) Cached(e *engine) int { return k.prompt.cached(e) }

// asked ends looking for the prompt.
func (k *look) asked() {
	if k.prompt != nil {
		k.f.prompts.rooms.Put(k.prompt)
		k.prompt = nil
	}
}

// read makes the prompt's chain. Where tenants do not share a prefix cache neither do they share pieces: their salts differ.
func (p *prompt) read(x *prefixes.Index, b *openai.Body) {
	key := x.Key(0, b.Model)
	if b.Sealed != "" {
		key = x.Key(key, b.Sealed)
	} else {
		key = x.KeyBytes(key, b.Salt)
	}
	tools := b.Asked[openai.AskedTools]
	p.index, p.tokens, p.bytes, p.chain = x, b.PromptTokens()+(tools.To-tools.From)/4, 0, p.chain[:0]
	for _, part := range b.Asked {
		p.bytes += part.To - part.From
		p.chain, key = x.Chain(p.chain, key, part.Of(b.Raw))
	}
}

// cached is how many of the prompt's tokens the engine is thought to have.
func (p *prompt) cached(e *engine) int {
	h := e.holds(p.index)
	if h == nil || int(h.holder) >= len(p.pieces) || p.pieces[h.holder] == 0 {
		return 0
	}
	return p.tokens * prefixes.Bytes(int(p.pieces[h.holder])) / p.bytes
}

// reads notes what comes of the choice: who is given the prompt to compute, and so will have it. That is when it is sent, not when it is
// answered: of several that begin alike and come at once the first is computed for all, which serves more requests well in replays of a
// trace. If nothing comes of it, what the index says is wrong, and costs a guess. It returns how many tokens of the prompt either engine
// has to compute, for models whose policy looks at that.
func (k *look) reads(c policies.Choice) (prefill, decode int) {
	if k.prompt == nil || k.prompt.index != k.f.prompts.index.Load() { // what an index before this one says is of no use to anybody
		return 0, 0
	}
	if c.Split && k.m.looks[prefillRole] {
		prefill = k.prompt.give(k.m.prefill[c.Prefill])
	}
	switch {
	case !k.m.looks[decodeRole]:
	case c.Split: // it is handed all of it
		k.prompt.note(k.m.decode[c.Decode])
	default:
		decode = k.prompt.give(k.m.decode[c.Decode])
	}
	return prefill, decode
}

// give notes that the engine computes what it does not have of the prompt, and returns how many tokens that is.
func (p *prompt) give(e *engine) int {
	n := p.tokens - p.cached(e)
	p.note(e)
	return n
}

// note has the index know that the engine will have the prompt.
func (p *prompt) note(e *engine) {
	if h := e.hold(p.index); h != nil {
		p.index.Note(p.chain, h.holder)
	}
}
