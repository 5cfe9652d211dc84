package fleet

import (
	"sync"
	"sync/atomic"

	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/policies/prefixes"
	"pdrouter/router/openai"
)

// promptSearch is what all that look for prompts share. It outlives a reload.
type promptSearch struct {
	index atomic.Pointer[prefixes.Index] // of the present configuration
	rooms sync.Pool                      // of *prompt
}

// newIndex notes which models' policies look at prefixes, and returns the index for them, was if its size is the same; nil if there are
// none.
func (f *Fleet) newIndex(size int, was *prefixes.Index) *prefixes.Index {
	any := false
	for _, planner := range f.planners() {
		planner, can := planner.(interface {
			Prefixes(model string) (prefill, decode bool)
		})
		if !can {
			continue
		}
		for _, m := range f.Models {
			prefill, decode := planner.Prefixes(m.Name)
			m.usesPrefixes[Prefill], m.usesPrefixes[Decode] = m.usesPrefixes[Prefill] || prefill, m.usesPrefixes[Decode] || decode
			any = any || m.usesPrefixes != [roleCount]bool{}
		}
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

// cacheSlot is one run of an engine as the index knows it.
type cacheSlot struct {
	index      *prefixes.Index
	holder     prefixes.Holder
	generation uint64
}

// gone stands for an engine that is not of the configuration any more: it gets no place in the index.
var gone = new(cacheSlot)

// slotOf returns the place of the engine's present run in the index; nil if it has none.
func (e *Engine) slotOf(x *prefixes.Index) *cacheSlot {
	if h := e.slot.Load(); h != nil && h.index == x && h.generation == e.Generation.Load() {
		return h
	}
	return nil
}

// takeSlot returns the place of the engine's present run in the index and makes one if there is none; nil if it may have none.
func (e *Engine) takeSlot(x *prefixes.Index) *cacheSlot {
	if h := e.slotOf(x); h != nil {
		return h
	}
	was := e.slot.Load()
	if was == gone {
		return nil
	}
	h := &cacheSlot{index: x, holder: x.Join(), generation: e.Generation.Load()}
	if !e.slot.CompareAndSwap(was, h) { // another was first
		x.Leave(h.holder)
		return e.slotOf(x)
	}
	was.leave()
	return h
}

// forgetPrompts makes the index forget what the engine has. then is gone, or nil if the engine may have a place again.
func (e *Engine) forgetPrompts(then *cacheSlot) { e.slot.Swap(then).leave() }

func (h *cacheSlot) leave() {
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

	ids   blocks.Prompt // its token ids, as far as they are known; without any if none are
	found blocks.Found  // which engines have them

	forecast policies.Forecast // room for it
}

// FindPrompt looks for the request's prompt, if the model's policy looks at that. tenant is whose it is.
func (k *Selection) FindPrompt(b *openai.Body, tenant string) {
	if k.f.Prefixes == nil || k.m.usesPrefixes == [roleCount]bool{} {
		return
	}
	if k.prompt == nil {
		k.prompt, _ = k.f.prompts.rooms.Get().(*prompt)
		if k.prompt == nil {
			k.prompt = new(prompt)
		}
		k.prompt.read(k.f.Prefixes, b)
		k.readIDs(b, tenant)
	}
	k.prompt.pieces = k.prompt.index.Find(k.prompt.chain, k.prompt.pieces)
	if len(k.prompt.ids.Tokens) > 0 {
		k.f.FindBlocks(&k.prompt.ids, &k.prompt.found)
	}
}

// Cached returns how many tokens of the prompt the engine has in its cache: as it says itself, else by the index of what engines were asked; 0 if
// the policy does not look at that.
func (k *Selection) Cached(e *Engine) int {
	if k.prompt == nil {
		return 0
	}
	n, _ := k.prompt.cached(e)
	return n
}

// ForgetPrompt ends the search for the prompt. It does nothing unless the policy looks at prefixes.
func (k *Selection) ForgetPrompt() {
	if k.prompt != nil {
		k.prompt.ids = blocks.Prompt{}
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

// cached returns how many of the prompt's tokens the engine has in its cache, and whether it says so itself.
func (p *prompt) cached(e *Engine) (n int, byEvents bool) {
	held, partial, known := p.heldBy(e)
	if known && !partial {
		return held, true
	}
	estimate := 0
	if h := e.slotOf(p.index); h != nil && int(h.holder) < len(p.pieces) && p.pieces[h.holder] > 0 {
		estimate = p.tokens * prefixes.Bytes(int(p.pieces[h.holder])) / p.bytes
	}
	if known && held >= estimate {
		return held, true
	}
	return estimate, false
}

// NotePrompt records that the chosen engines will have the prompt. It returns how many tokens of it each of them has to compute, for models
// whose policy uses prefixes. It is called when the request is sent, not when it is answered. So of several requests at once with the same
// beginning, the first computes it for all: in replays of a trace this meets the SLO more often. If the request fails, the index is wrong
// until the entry is replaced, which costs a worse choice and nothing else.
func (k *Selection) NotePrompt(c policies.Choice) (prefill, decode int) {
	if k.prompt == nil || k.prompt.index != k.f.prompts.index.Load() { // the index was replaced since
		return 0, 0
	}
	if c.Split && k.m.usesPrefixes[Prefill] {
		prefill = k.prompt.give(k.m.Prefill[c.Prefill])
	}
	switch {
	case !k.m.usesPrefixes[Decode]:
	case c.Split: // it is handed all of it
		k.prompt.note(k.m.Decode[c.Decode])
	default:
		decode = k.prompt.give(k.m.Decode[c.Decode])
	}
	return prefill, decode
}

// give notes that the engine computes what it does not have of the prompt, and returns how many tokens that is.
func (p *prompt) give(e *Engine) int {
	n, _ := p.cached(e)
	p.note(e)
	return p.tokens - n
}

// note records in the index that the engine will have the prompt.
func (p *prompt) note(e *Engine) {
	if h := e.takeSlot(p.index); h != nil {
		p.index.Note(p.chain, h.holder)
	}
}
