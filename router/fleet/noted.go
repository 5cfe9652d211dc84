package fleet

import (
	"math"
	"sync/atomic"

	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/openai"
)

// What engines are thought to have of prompts is noted when a request is sent, and corrected by what becomes of it.

// CacheSize is how much an engine's prefix cache holds, as the engine says.
type CacheSize struct{ Blocks, BlockTokens int }

// Tokens is how many tokens it holds; 0 if the engine does not say.
func (s CacheSize) Tokens() int { return s.Blocks * s.BlockTokens }

// CacheSize is that of the engine's run; the zero value if the engine does not say.
func (e *Engine) CacheSize() CacheSize {
	if s := e.cacheSize.Load(); s != nil {
		return *s
	}
	return CacheSize{}
}

// UsesCacheSize reports whether it matters how the engine's cache is divided: a policy looks at prefixes, clients may get prefill's token, or the engine
// pins what it has answered.
func (f *Fleet) UsesCacheSize(e *Engine) bool {
	m := f.Models[e.Model]
	return f.Prefixes != nil || e.Pins() || m != nil && m.FirstTokenOfPrefill
}

// SetCacheSize notes what the engine says of its prefix cache. With another size the index begins anew for it.
func (e *Engine) SetCacheSize(s CacheSize) {
	if s != e.CacheSize() {
		e.cacheSize.Store(&s)
	}
}

// The places within a prompt that are looked for apart from its pieces.
const (
	endOfPrompt   = iota // all of it
	endOfAnswered        // the prompt and the answer of the turn before
	endOfAsked           // the prompt of the turn before
	ends
)

// ending is one of these places.
type ending struct {
	hash  uint64   // 0: the prompt has none
	bytes int      // of the prompt, up to there
	has   []uint64 // a bit for each holder that has all up to there
}

// readEnds finds where the prompt and the turn before end. key and links are of all parts but the last.
func (p *prompt) readEnds(b *openai.Body, key prefixes.Key, links int) {
	turns, last := b.Turns(), b.Asked[len(b.Asked)-1]
	part, first := last.Of(b.Raw), p.bytes-(last.To-last.From)
	p.ends[endOfPrompt].hash, p.ends[endOfPrompt].bytes = p.index.End(p.chain, key, links, part, turns.End), p.bytes
	p.ends[endOfAsked].hash, p.ends[endOfAnswered].hash = 0, 0
	if turns.Asked > 0 {
		asked := p.index.End(p.chain, key, links, part, turns.Asked)
		p.ends[endOfAsked].hash, p.ends[endOfAsked].bytes = asked, first+turns.Asked
		p.ends[endOfAnswered].hash, p.ends[endOfAnswered].bytes = prefixes.Answered(asked), first+turns.Answered
	}
}

// find looks for the prompt in the index.
func (p *prompt) find() {
	p.pieces = p.index.Find(p.chain, p.pieces)
	for i := range p.ends {
		if e := &p.ends[i]; e.hash != 0 {
			e.has = p.index.Has(e.hash, e.has[:0])
		} else {
			e.has = e.has[:0]
		}
	}
}

// foundAt is how many bytes of the prompt the engine has by the index, and how many without the answer of the turn before.
func (p *prompt) foundAt(e *Engine) (bytes, unanswered int) {
	h := e.slotOf(p.index)
	if h == nil || int(h.holder) >= len(p.pieces) || p.pieces[h.holder] == 0 {
		return 0, 0
	}
	bytes = prefixes.Bytes(int(p.pieces[h.holder]))
	unanswered = bytes
	for i := range p.ends {
		if at := &p.ends[i]; at.hash != 0 && prefixes.In(at.has, h.holder) {
			bytes = max(bytes, at.bytes)
			if i != endOfAnswered {
				unanswered = max(unanswered, at.bytes)
			}
		}
	}
	if !p.answersStay {
		bytes = unanswered
	}
	return bytes, unanswered
}

// learnedPrompts is what answers have shown of a model's prompts. It is safe for concurrent use.
type learnedPrompts struct {
	scale atomic.Uint64 // tokens that engines count for each that was estimated, a float64; 0: nothing was seen
	stays atomic.Uint64 // the part of answers that next prompts begin with as they were computed, a float64
}

func newLearnedPrompts() *learnedPrompts {
	l := new(learnedPrompts)
	l.stays.Store(math.Float64bits(1))
	return l
}

// Scale is how many tokens engines count for each that is estimated.
func (l *learnedPrompts) Scale() float64 {
	if s := math.Float64frombits(l.scale.Load()); s > 0 {
		return s
	}
	return 1
}

// answersStay reports whether most answers stay as they were computed when they are a part of the next prompt. Templates that drop the reasoning
// of earlier turns change them.
func (l *learnedPrompts) answersStay() bool { return math.Float64frombits(l.stays.Load()) >= .5 }

// learned is what one observation counts beside those before.
const learned = 1. / 16

// mostScale bounds what one prompt teaches, so that no client can make the tokens of all others' prompts count for nothing, or for too much. Texts have
// a quarter of a token to four tokens for each that is estimated.
const mostScale = 4

// seeScale learns from a prompt. Another goroutine's observation at the same time may be lost.
func (l *learnedPrompts) seeScale(estimate, counted int) {
	if estimate <= 0 || counted <= 0 {
		return
	}
	was, now := math.Float64frombits(l.scale.Load()), min(max(float64(counted)/float64(estimate), 1./mostScale), mostScale)
	if was > 0 {
		now = was + (now-was)*learned
	}
	l.scale.Store(math.Float64bits(now))
}

// seeAnswer learns from whether an answer has stayed.
func (l *learnedPrompts) seeAnswer(stayed bool) {
	was, now := math.Float64frombits(l.stays.Load()), 0.0
	if stayed {
		now = 1
	}
	l.stays.Store(math.Float64bits(was + (now-was)*learned))
}

// Noted is what is thought to become of a request's prompt at its engines. It belongs to one goroutine at a time. Nil does nothing.
type Noted struct {
	fleet    *Fleet
	model    *Model
	prompt   prefixes.Prompt
	ends     [2]prefixes.End // of the prompt, and of its answer
	at       [roleCount]notedAt
	estimate int // tokens of the prompt; 0 if they are known
	// Tokens of it that the engine that computes it is thought to have, and how many of these without the answer of the turn before.
	cached, unanswered int
}

// notedAt is one engine of a Noted.
type notedAt struct {
	slot  *cacheSlot // nil: nothing is noted
	had   int        // links
	stamp uint32

	receives bool // it is to be handed the prompt, and was not yet
	reserved prefixes.Reserved
	before   [2]uint64 // ends of the turn before that it has
}

// NotePrompt records that the chosen engines will have the prompt. It returns how many tokens of it each of them has to compute, for models
// whose policy uses prefixes. It is called when the request is sent, not when it is answered. So of several requests at once with the same
// beginning, the first computes it for all: in replays of a trace this meets the SLO more often. The Noted corrects what was noted by what becomes
// of the request; it is nil if nothing was. A decode engine that is handed the prompt has it when it gives the first token (Arrived): until then
// it only keeps room for it.
func (k *Selection) NotePrompt(c policies.Choice) (prefill, decode int, n *Noted) {
	if k.prompt == nil || k.prompt.index != k.f.prompts.index.Load() { // the index was replaced since
		return 0, 0, nil
	}
	n = k.newNoted()
	if c.Split && k.m.usesPrefixes[Prefill] {
		n.predict(k, k.m.Prefill[c.Prefill])
		prefill = k.toCompute(k.m.Prefill[c.Prefill])
		n.note(k.prompt, Prefill, k.m.Prefill[c.Prefill])
	}
	switch {
	case !k.m.usesPrefixes[Decode]:
	case c.Split: // it is handed all of it
		n.reserve(k.prompt, k.m.Decode[c.Decode])
	default:
		n.predict(k, k.m.Decode[c.Decode])
		decode = k.toCompute(k.m.Decode[c.Decode])
		n.note(k.prompt, Decode, k.m.Decode[c.Decode])
	}
	return prefill, decode, n
}

// toCompute is how many tokens of the prompt the engine does not have.
func (k *Selection) toCompute(e *Engine) int {
	n, _ := k.prompt.cached(e)
	return k.prompt.tokens - n
}

func (k *Selection) newNoted() *Noted {
	n, _ := k.f.prompts.noted.Get().(*Noted)
	if n == nil {
		n = new(Noted)
	}
	p := k.prompt
	rate, after := p.noting()
	*n = Noted{fleet: k.f, model: k.m, prompt: prefixes.Prompt{Links: append(n.prompt.Links[:0], p.chain...), Rate: rate}, ends: after}
	if len(p.ids.Tokens) == 0 && !p.exact {
		n.estimate = p.tokens
	}
	return n
}

// noting is what the index is told of the prompt besides its links: how many tokens a byte has, and what follows the links, the rest of the prompt and
// the answer.
func (p *prompt) noting() (rate float64, after [2]prefixes.End) {
	rate = float64(p.tokens) * p.scale / float64(max(p.bytes, 1))
	rest := float64(p.bytes-prefixes.Bytes(len(p.chain))) * rate
	end := p.ends[endOfPrompt].hash
	return rate, [2]prefixes.End{{Hash: end, Tokens: int(rest)}, {Hash: prefixes.Answered(end)}}
}

// predict notes what the engine that computes the prompt is thought to have of it, so that Counted can learn from what it says.
func (n *Noted) predict(k *Selection, e *Engine) {
	bytes, unanswered := k.prompt.foundAt(e)
	if at := &k.prompt.ends[endOfAnswered]; bytes == unanswered && !k.prompt.answersStay && at.hash != 0 { // learn whether they stay again
		if h := e.slotOf(k.prompt.index); h != nil && prefixes.In(at.has, h.holder) {
			bytes = max(bytes, at.bytes)
		}
	}
	n.cached, n.unanswered = int(float64(bytes)*n.prompt.Rate), int(float64(unanswered)*n.prompt.Rate)
}

// note records in the index that the engine will have the prompt.
func (n *Noted) note(p *prompt, r Role, e *Engine) {
	h := e.takeSlot(p.index)
	if h == nil {
		return
	}
	n.at[r] = p.at(h)
	n.has(r)
}

// at is what an engine has of the prompt and of the turn before.
func (p *prompt) at(h *cacheSlot) notedAt {
	at := notedAt{slot: h}
	if int(h.holder) < len(p.pieces) {
		at.had = int(p.pieces[h.holder])
	}
	for i, of := range [...]int{endOfAnswered, endOfAsked} {
		if end := &p.ends[of]; end.hash != 0 && prefixes.In(end.has, h.holder) {
			at.before[i] = end.hash
		}
	}
	return at
}

// has records in the index that the role's engine has the prompt.
func (n *Noted) has(r Role) {
	at := &n.at[r]
	for _, hash := range at.before { // the prompt's own pieces stand for the turn before from now on
		if hash != 0 {
			at.slot.index.Drop(hash, at.slot.holder)
		}
	}
	n.prompt.Ends = n.ends[:1]
	at.stamp = at.slot.index.Note(&n.prompt, at.slot.holder)
}

// reserve records in the index that the decode engine keeps room for what it is to be handed of the prompt.
func (n *Noted) reserve(p *prompt, e *Engine) {
	h := e.takeSlot(p.index)
	if h == nil {
		return
	}
	at := p.at(h)
	at.receives = true
	at.reserved = p.index.Reserve(h.holder, int(float64(p.bytes-prefixes.Bytes(at.had))*n.prompt.Rate))
	n.at[Decode] = at
}

// received ends the reservation of the role's engine. It returns false if there is none.
func (n *Noted) received(r Role) bool {
	at := &n.at[r]
	if !at.receives {
		return false
	}
	at.slot.index.Return(at.reserved)
	at.receives, at.reserved = false, prefixes.Reserved{}
	return true
}

// Arrived notes that the decode engine has given its first token, so that it has the prompt.
func (n *Noted) Arrived() {
	if n != nil && n.received(Decode) {
		n.has(Decode)
	}
}

// Failed notes that the role's engine did not get the prompt after all.
func (n *Noted) Failed(r Role) {
	if n == nil || n.at[r].slot == nil || n.received(r) {
		return
	}
	h := n.at[r].slot
	n.prompt.Ends = n.ends[:1]
	h.index.Undo(&n.prompt, n.at[r].had, h.holder, n.at[r].stamp)
}

// Answered notes that the decode engine has given an answer of so many tokens, which it has too from now on.
func (n *Noted) Answered(tokens int) {
	if n == nil || n.at[Decode].slot == nil || tokens <= 0 {
		return
	}
	h := n.at[Decode].slot
	n.ends[1].Tokens = tokens
	n.prompt.Ends = n.ends[:2]
	h.index.Note(&n.prompt, h.holder)
}

// Counted learns from what the engine that has computed the prompt has counted: its tokens, and how many of them were cached; below 0 if it does
// not say.
func (n *Noted) Counted(prompt, cached int) {
	if n == nil {
		return
	}
	n.model.learned.seeScale(n.estimate, prompt)
	if cached >= 0 && n.cached > n.unanswered {
		n.model.learned.seeAnswer(2*cached > n.cached+n.unanswered)
	}
}

// Release gives the Noted back. It must not be used after that.
func (n *Noted) Release() {
	if n != nil {
		n.received(Decode)
		n.at, n.model = [roleCount]notedAt{}, nil
		n.fleet.prompts.noted.Put(n)
	}
}

// counted is how many of n tokens by estimate the engine will count as cached: whole blocks, and never all of the prompt.
func (p *prompt) counted(n, block int) int {
	block = max(block, 1)
	all := int(float64(p.tokens)*p.scale + .5)
	return min(int(float64(n)*p.scale+.5), max(all-1, 0)) / block * block
}
