package fleet

import (
	"cmp"

	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/router/openai"
	"pdrouter/router/tokens"
)

// readIDs notes the prompt's token ids, as far as they are known: the client sends them, or an engine reported them when it had the messages of
// the chat before. It does nothing for a model none of whose engines publishes its blocks.
//
// Those that tokens.Map calls exact count as much as those that are only likely, which most of them are: the last turn's are exact only once a
// third turn was seen. Where a likely id is wrong, so are all after it, and no engine has blocks for these unless it was asked that very prompt.
// So a hit is a prediction, as an estimate from the text is, and not a promise; pdrouter_mispredicted_cached_tokens_total says how good it is.
//
// If only a smaller half is known, such as a system prompt before a document, what engines have of it says little: one that has it all may have
// the rest too, or be computing it for another request. Then the estimate is better, and no ids are noted.
func (k *Selection) readIDs(b *openai.Body, tenant string) {
	if !k.m.publishes || k.f.blocks == nil {
		return
	}
	ids := tokens.ParseIDs(b.PromptIDs())
	all := len(ids)
	if all == 0 && k.f.tokens != nil {
		ids, _, all = k.f.tokens.Lookup(tokens.PromptOf(cmp.Or(b.Model, k.m.Name), tenant, b))
	}
	if len(ids) == 0 || 2*len(ids) < all {
		return
	}
	p := k.prompt
	p.tokens = all
	p.ids = blocks.Prompt{Model: k.m.Name, LoRA: k.adapter, Salt: b.SaltText(), Tokens: ids[:min(len(ids), all-1)]} // the last token of a prompt is always computed
}

// heldBy is how many tokens of the prompt the engine has in whatever tier, as it says itself: those that it need not compute. known is false if it
// does not say, or if the prompt's token ids are not known. partial says that it may have more.
func (p *prompt) heldBy(e *Engine) (n int, partial, known bool) {
	if len(p.ids.Tokens) == 0 {
		return 0, false, false
	}
	held, partial, known := e.Held(&p.found)
	return int(held[blocks.Disk]), partial, known
}

// Predicted is how many tokens of the prompt the engine that computes it has in its cache, as far as the choice went by that: known is false if
// it did not. byEvents says that the engine itself publishes what it has. It must be called before NotePrompt.
func (k *Selection) Predicted(c policies.Choice) (n int, byEvents, known bool) {
	if k.prompt == nil {
		return 0, false, false
	}
	e, role := k.m.Decode[c.Decode], Decode
	if c.Split {
		e, role = k.m.Prefill[c.Prefill], Prefill
	}
	if n, byEvents = k.prompt.cached(e); !byEvents {
		n = k.prompt.counted(n, e.CacheSize().BlockTokens)
	}
	return n, byEvents, k.m.usesPrefixes[role]
}

// cachedBy names how it is known what the engine has of the prompt; "" if the policy does not look at that.
func (k *Selection) cachedBy(e *Engine) string {
	if k.prompt == nil {
		return ""
	}
	if _, byEvents := k.prompt.cached(e); byEvents {
		return "events"
	}
	return "estimate"
}
