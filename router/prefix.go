package router

import (
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/config"
	"pdrouter/router/openai"
)

// looking notes which models' policies look at prefixes, and returns the index for them, that of before if its size is the same; nil if
// there are none.
func (f *fleet) looking(by Planner, cfg config.Config, old *setup) *prefixes.Index {
	planner, can := by.(interface {
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
	switch size := cfg.Limits.PrefixIndexEntries; {
	case !any:
		return nil
	case old != nil && old.index != nil && old.index.Bound() == size:
		return old.index
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
	if k.s.index == nil || k.m.looks == [roles]bool{} {
		return
	}
	if k.prompt == nil {
		k.prompt, _ = k.r.prompts.Get().(*prompt)
		if k.prompt == nil {
			k.prompt = new(prompt)
		}
		k.prompt.read(k.s.index, b)
	}
	k.prompt.pieces = k.prompt.index.Find(k.prompt.chain, k.prompt.pieces)
}

// asked ends looking for the prompt.
func (k *look) asked() {
	if k.prompt != nil {
		k.r.prompts.Put(k.prompt)
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
// trace. If nothing comes of it, what the index says is wrong, and costs a guess.
func (k *look) reads(a *attempt, c policies.Choice) {
	if k.prompt == nil || k.prompt.index != k.r.now().index { // what an index before this one says is of no use to anybody
		return
	}
	if c.Split && k.m.looks[prefillRole] {
		k.prompt.give(&a.prefill, k.m.prefill[c.Prefill])
	}
	if !k.m.looks[decodeRole] {
		return
	}
	if c.Split { // it is handed all of it
		k.prompt.note(k.m.decode[c.Decode])
	} else {
		k.prompt.give(&a.decode, k.m.decode[c.Decode])
	}
}

// give has the leg count with the engine for what of the prompt it is to compute.
func (p *prompt) give(l *call, e *engine) {
	l.unread.Store(int64(p.tokens - p.cached(e)))
	p.note(e)
}

// note has the index know that the engine will have the prompt.
func (p *prompt) note(e *engine) {
	if h := e.hold(p.index); h != nil {
		p.index.Note(p.chain, h.holder)
	}
}

// reading counts the prompt with the engine that the leg is for.
func (l *call) reading() {
	if n := l.unread.Load(); n != 0 {
		l.engine.backlog.Add(n)
	}
}

// hasRead takes that back: the prompt is computed, or nobody waits for it. It may be called twice.
func (l *call) hasRead() {
	if l.unread.Load() != 0 {
		l.engine.backlog.Add(-l.unread.Swap(0))
	}
}
