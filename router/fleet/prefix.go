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
	noted sync.Pool                      // of *Noted
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
	capacity   int // tokens that the engine's cache has room for; 0 if that is not known
}

// gone stands for an engine that is not of the configuration any more: it gets no place in the index.
var gone = new(cacheSlot)

// slotOf returns the place of the engine's present run in the index; nil if it has none.
func (e *Engine) slotOf(x *prefixes.Index) *cacheSlot {
	if h := e.slot.Load(); h != nil && h.index == x && h.generation == e.Generation.Load() && h.capacity == e.CacheSize().Tokens() {
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
	capacity := e.CacheSize().Tokens()
	h := &cacheSlot{index: x, holder: x.Join(capacity), generation: e.Generation.Load(), capacity: capacity}
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
	ends   [ends]ending
	scale  float64 // tokens that engines count for each of tokens
	exact  bool    // tokens are not an estimate of text, from which something could be learned

	answersStay bool // answers are thought to stay as they are in the next prompt

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
		k.prompt.exact = b.PromptIDs() != nil || b.Rendered() == openai.RenderedMedia // an image's tokens are not those of text
		k.prompt.scale, k.prompt.answersStay = 1, k.m.learned.answersStay()
		if k.readIDs(b, tenant); len(k.prompt.ids.Tokens) == 0 && !k.prompt.exact {
			k.prompt.scale = k.m.learned.Scale()
		}
	}
	k.prompt.find()
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
		k.prompt.ids, k.prompt.forecast.Moves = blocks.Prompt{}, nil
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
	var before int // links of all parts but the last
	var beforeKey prefixes.Key
	for _, part := range b.Asked {
		before, beforeKey = len(p.chain), key
		p.bytes += part.To - part.From
		p.chain, key = x.Chain(p.chain, key, part.Of(b.Raw))
	}
	p.readEnds(b, beforeKey, before)
}

// cached returns how many of the prompt's tokens the engine has in its cache, and whether it says so itself.
func (p *prompt) cached(e *Engine) (n int, byEvents bool) {
	held, partial, known := p.heldBy(e)
	if known && !partial {
		return held, true
	}
	estimate := 0
	if found, _ := p.foundAt(e); found > 0 {
		estimate = min(p.tokens*found/p.bytes, max(p.tokens-1, 0)) // the last token is always computed
	}
	if known && held >= estimate {
		return held, true
	}
	return estimate, false
}
