package fleet

import (
	"slices"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/policies/prefixes"
	"pdrouter/router/fleet/health"
)

// PromptTrace is a prompt as the prefix index knows it, after its request: so an engine that is given the prompt's KV by other means can be noted
// there. Nil is one that is not known there.
type PromptTrace struct {
	index  *prefixes.Index
	prompt prefixes.Prompt
}

// Trace returns the prompt that was looked for; nil if the policy does not look at prompts. It must be called before ForgetPrompt.
func (k *Selection) Trace() *PromptTrace {
	if k.prompt == nil {
		return nil
	}
	rate, ends := k.prompt.noting()
	return &PromptTrace{index: k.prompt.index, prompt: prefixes.Prompt{Links: slices.Clone(k.prompt.chain), Rate: rate, Ends: ends[:]}}
}

// Note records that the engine has so many tokens of the prompt and its answer; all is how many the prompt has.
func (t *PromptTrace) Note(e *Engine, tokens, all int) {
	if t == nil {
		return
	}
	h := e.takeSlot(t.index)
	if h == nil {
		return
	}
	p := t.prompt
	switch block := max(e.CacheSize().BlockTokens, 16); { // what is moved are whole blocks
	case tokens+block < all:
		p.Links, p.Ends = p.Links[:len(p.Links)*tokens/all], nil
	case tokens <= all:
		p.Ends = p.Ends[:1]
	}
	t.index.Note(&p, h.holder)
}

// Size is what the trace takes of memory, in bytes.
func (t *PromptTrace) Size() int {
	if t == nil {
		return 0
	}
	return 120 + 8*len(t.prompt.Links)
}

// OfferMoves has a choice look at moves that can come before the request. It does nothing unless the policy looks at prompts, and is undone by ForgetPrompt.
func (k *Selection) OfferMoves(moves []policies.Move) {
	if k.prompt != nil {
		k.prompt.forecast.Moves = moves
	}
}

// Session is a hash of what names the session of the request; 0 if nothing does, or nobody looks at it.
func (k *Selection) Session() uint64 { return k.session }

// Conversation is what decides which engine of a role would serve the next turn of one.
type Conversation struct {
	Model   *Model
	Role    Role
	Adapter string
	Session uint64
	Tokens  int       // of the prompt
	At      time.Time // when it is asked
}

// NextHome returns the engine of the role that would serve the next turn of a conversation if the engine from did not, and that can read from's
// KV; nil if there is none.
func (f *Fleet) NextHome(c Conversation, from *Engine) *Engine {
	not := Excluded{}.Add(from, 0)
	k, q := f.asks(c)
	for range len(c.Model.Prefill) + len(c.Model.Decode) {
		if e := k.home(q, c.Role, not, c.At); e == nil || f.Reads(e, from) {
			return e
		} else {
			not = not.Add(e, 0)
		}
	}
	return nil
}

// Home returns the engine of the role that would serve the next turn of a conversation if it did not matter what engines have, and none was in its
// slow start; nil if there is none.
func (f *Fleet) Home(c Conversation) *Engine {
	k, q := f.asks(c)
	k.fullShare = true
	return k.home(q, c.Role, Excluded{}, c.At)
}

// asks readies the choice of an engine for the next turn of a conversation.
func (f *Fleet) asks(c Conversation) (*Selection, policies.Request) {
	k := &Selection{dryRun: true}
	k.Init(f, c.Model, 0, nil, c.Adapter, c.Session)
	q := policies.Request{Model: c.Model.Name, PromptTokens: c.Tokens}
	if c.Role == Decode {
		q.Unsplittable = "moved"
	}
	return k, q
}

// home is the engine of a role that would be chosen.
func (k *Selection) home(q policies.Request, r Role, not Excluded, at time.Time) *Engine {
	k.Begin(not, true)
	k.Now = at
	choice, _ := k.chooseInRounds(k.complete(q))
	var e *Engine
	switch {
	case r == Decode && choice.Decode >= 0:
		e = k.m.Decode[choice.Decode]
	case r == Prefill && choice.Split:
		e = k.m.Prefill[choice.Prefill]
	}
	if e == nil || not.Has(e) || !e.Usable() {
		return nil
	}
	return e
}

// Reads reports whether an engine can read the KV of another, as far as both say what they are.
func (f *Fleet) Reads(e, from *Engine) bool {
	if from.Publishes {
		c := f.PairOf(metadata.Pair{Prefill: from.Incarnation(), Decode: e.Incarnation()})
		return c != nil && f.Compatible(c) == nil
	}
	return (&Pair{Model: from.Model, Connector: from.Origin.Connector, Prefill: from, Decode: e}).CompatibleStock() == nil
}

// RunOf tells the runs of an engine apart: what an engine had in its cache is lost with its run.
func (f *Fleet) RunOf(e *Engine) uint64 {
	if e.Publishes {
		if records := f.Records(e); len(records) > 0 {
			return records[0].Generation
		}
	}
	return e.Generation.Load()
}

// Leading returns a function that says how many of the first of these token ids of a conversation an engine has, as the engine itself says. known
// is false if it does not say, or may have more.
func (f *Fleet) Leading(c Conversation, salt string, ids []uint32) func(*Engine) (n int, known bool) {
	if !c.Model.publishes || f.blocks == nil {
		return func(*Engine) (int, bool) { return 0, false }
	}
	var found blocks.Found
	f.FindBlocks(&blocks.Prompt{Model: c.Model.Name, LoRA: c.Adapter, Salt: salt, Tokens: ids}, &found)
	return func(e *Engine) (int, bool) {
		held, partial, known := e.Held(&found)
		return int(held[blocks.Disk]), known && !partial
	}
}

// Serves reports whether the engine has answered, and is given requests, be it few ones.
func (e *Engine) Serves(now time.Time, slowStart time.Duration) bool {
	return e.Usable() && e.proven.Load() && e.Health.Standing(now, slowStart).Out == health.InUse
}

// Quiet reports whether no request waits for the engine's model, and the engine has no prompt to compute, as far as is known.
func (f *Fleet) Quiet(e *Engine, now time.Time) bool {
	if m := f.Models[e.Model]; m == nil || m.Queue.Stats().Waiting > 0 {
		return false
	}
	return e.forecast.Work(Seconds(now)).Wait == 0
}
