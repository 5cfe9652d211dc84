// Package openai reads and writes the bodies of the OpenAI API, and of the API formats beside it: the client's request, the bodies of both
// legs made of it, what an engine's answer and each event of a stream say, and errors. It reads a body in one pass and keeps it as it was
// written; it builds nothing. It knows no engine and no configuration. The edge parses bodies, leg writes those of both legs, and exchange and
// relay make what the client gets.
//
// Read body.go for what is known of a body, body_leg.go for the bodies of both legs, body_read.go and body_field.go for how each member is read,
// shape.go for API formats. choices.go, continued.go, form.go and passthrough.go are for requests that are served in another way.
package openai

import (
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
	"time"
)

// maxBodyDepth is how deep a client's objects and arrays may be nested.
const maxBodyDepth = 64

// Limits bound what a body may ask for. Zero means no bound.
type Limits struct {
	N        int         // n and best_of
	Prompts  int         // prompts in one body
	Stop     int         // stop strings
	Logprobs int         // logprobs (completions), top_logprobs and prompt_logprobs; -1 in a body means all and is over any bound
	Strict   bool        // refuse kv_transfer_params and ec_transfer_params instead of dropping them
	Media    *MediaRules // where media may be at; nil: anywhere
	Isolate  bool        // engines' caches of tenants are kept apart: media ids are replaced, and features refused
}

// Why a body cannot be split over two engines: values of Body.Unsplittable.
const (
	UnsplitN         = "n>1"
	UnsplitBestOf    = "best_of>1"
	unsplitPrompts   = "prompts>1"
	UnsplitEcho      = "echo"
	UnsplitLogprobs  = "prompt_logprobs"
	UnsplitBeam      = "beam_search"
	UnsplitOneToken  = "max_tokens<=1"
	UnsplitFan       = "too_many_choices"
	UnsplitEmbedding = "prompt_embeds"
	// The rest of the prompt is with the engine that kept the answer before.
	unsplitPrevious = "previous_response_id"
	// The engine answers at once and works on: no exchange would be left to complete the hand-off.
	UnsplitBackground = "background"
	// The engine calls tools itself and goes on with what they say, for which a hand-off is of no use.
	UnsplitServerTools = "server_tools"
	// What is cut off the prompt depends on how long the answer may be, which differs between the legs.
	UnsplitTruncation = "truncation"
)

// Objective is what a request is to keep; 0 leaves it to the policy.
type Objective struct{ TTFT, ITL time.Duration }

// Body is one request's body: the bytes as they came, and what routing needs of them. It is not changed after it is parsed and its caller
// has set what it adds (Memory, Urgent, Sealed, MediaIDs, Objective), so AppendVariant may be called from several goroutines. Raw must
// stay unchanged as long as the body is used: Memory holds it.
type Body struct {
	Raw          []byte
	Model        string  // "" if absent
	N            int     // 1 if absent
	MaxTokens    int     // the effective one; -1 if absent
	Prompts      int     // prompts in the body; 1 for chat
	promptBytes  int     // bytes of text in prompt or messages, JSON escapes counted as written
	promptIDs    int     // token ids in prompt
	Salt         []byte  // cache_salt as it was written; nil if absent
	SessionKey   []byte  // prompt_cache_key, else user, as it was written; nil if both are absent
	Sealed       string  // what both legs carry as cache_salt instead, JSON; "" leaves the client's own
	MediaIDs     *Sealer // makes the media ids that both legs carry; nil leaves the client's own
	Previous     string  // of which kept answer this one is the next; "" if of none
	Unsplittable string
	Objective    Objective // what it is to keep
	Priority     int       // the less the sooner; 0 if absent
	Shape        Shape
	Stream       bool
	Urgent       bool // who asks may say so: the engines get the priority
	formed       bool // the answer is to have a form, which the engine compiles before it begins
	rendered     Rendered
	Unkept       bool   // the client wants no engine to keep the answer
	Removed      bool   // the client sent kv or ec transfer params; neither leg carries them
	owns         uint16 // a bit for each OwnedField that is in owned
	fan          fanSpans
	edits        []jsonscan.Edit           // in what the body of one choice differs from Raw, which it shares with the others
	Asked        [askedParts]jsonscan.Span // where the prompt is, as an engine puts it together
	Passthrough  *Passthrough              // of a request that is passed to one engine; nil of others
	Memory       Memory                    // holds Raw, by Retain and Release; nil if Raw stays unchanged without

	open            int // where the outermost brace is
	members         int // of the outermost object
	samplingMembers int // of sampling_params, where max_tokens and its like stand in it; -1 if it is not there
	owned           []ownedMember

	ownedRoom [6]ownedMember // enough for most
}

// Memory owns the memory of a body: it stays unchanged until every hold of it is dropped.
type Memory interface {
	Retain()
	Release()
}

// Retain keeps Raw unchanged until Release. The caller must know that it is unchanged now: the handler has not ended, or another has
// retained it.
func (b *Body) Retain() {
	if b != nil && b.Memory != nil {
		b.Memory.Retain()
	}
}

// Release ends a hold.
func (b *Body) Release() {
	if b != nil && b.Memory != nil {
		b.Memory.Release()
	}
}

// BegunInOrder reports whether stock engines begin with the request before those for model that are sent later. A form to compile, an
// adapter or a priority may put it aside.
func (b *Body) BegunInOrder(model string) bool {
	return !b.formed && (b.Model == "" || b.Model == model) && b.Priority == 0
}

// PromptTokens is an estimate of the prompt's length in tokens.
func (b *Body) PromptTokens() int { return b.promptIDs + b.promptBytes/4 }

// Rendered is why the decode leg of a split request must render and tokenise the prompt although prefill has done so.
type Rendered uint8

const (
	RenderedOnce  Rendered = iota // it need not: it can carry the prompt's token ids in place of the messages
	RenderedRoute                 // engines take the prompt's token ids only with a chat
	RenderedMedia                 // the token ids do not have the images, sounds or videos
	RenderedText                  // the answer is to have the prompt's text
)

// Rendered is why the decode leg must render the prompt.
func (b *Body) Rendered() Rendered { return b.rendered }

// ParseBody reads raw in one pass. The error is an OpenAI-shaped 400.
func ParseBody(s Shape, raw []byte, lim Limits) (*Body, *Error) {
	b := &Body{Raw: raw, Shape: s, N: 1, MaxTokens: -1, Prompts: 1, samplingMembers: -1}
	b.owned = b.ownedRoom[:0]
	p := bodyParser{body: b, lim: lim, depth: 1}
	p.Bytes, p.MaxDepth, p.Unique = raw, maxBodyDepth, true
	p.Space()
	if p.Pos == len(raw) {
		return nil, ErrBadRequest(reason.BadJSON, "", "The request body is empty.")
	}
	if raw[p.Pos] == '{' {
		p.top()
	} else if p.Value(0) && p.End() {
		return nil, ErrBadRequest(reason.BadJSON, "", "The request body must be a JSON object.")
	}
	if p.End(); p.Why != "" {
		return nil, p.broken()
	}
	if p.bad != nil {
		return nil, p.bad
	}
	if err := p.checkTogether(); err != nil {
		return nil, err
	}
	return b, nil
}

// bodyParser is the scanner with what it found.
type bodyParser struct {
	jsonscan.Scanner
	body  *Body
	lim   Limits
	bad   *Error // the first field that is not acceptable; broken JSON after it has precedence
	depth int    // of the object whose members are read

	maxTokens, maxCompletion int // -1: absent
	bestOf                   int
	hasStreamOptions         bool
	echo, beam               bool
	promptLogprobs, embeds   bool
	truncates, background    bool
	cacheKeyed               bool // prompt_cache_key was there
	serverTools              bool
	promptText, media        bool // the answer is to have the rendered prompt; a message has a part that is not text
	mediaIDs                 int
	sent                     string // the transfer field that the client sent
}

// broken is the answer to what is no JSON, or not unambiguous JSON.
func (p *bodyParser) broken() *Error {
	if p.Repeated {
		key := p.Bytes[p.At:]
		key = key[:min(len(key), 64)]
		for i := 1; i < len(key); i++ {
			if key[i] == '"' && key[i-1] != '\\' {
				key = key[:i+1]
			}
		}
		return ErrBadRequest(reason.DuplicateKey, "", "The request body has %s, at byte %d: %s", p.Why, p.At, key)
	}
	return ErrBadRequest(reason.BadJSON, "", "The request body is not valid JSON: %s, at byte %d.", p.Why, p.At)
}

// refuse notes the first field that is not acceptable.
func (p *bodyParser) refuse(why reason.Reason, param, msg string) {
	if p.bad == nil {
		p.bad = ErrBadRequest(why, param, "%s %s.", param, msg)
	}
}

// top reads the outermost object.
func (p *bodyParser) top() {
	p.maxTokens, p.maxCompletion, p.bestOf = -1, -1, 1
	p.body.open = p.Pos
	m, _ := p.Object(1)
	top := formats[p.body.Shape].top
	for p.Member(&m) {
		if f := top.find(m.Key, m.Sum); f != nil {
			p.read(f, inTop, &m)
		} else {
			p.Value(1)
		}
		if p.Why != "" {
			return
		}
	}
	p.body.members = m.Count
}

// checkTogether checks what depends on several fields.
func (p *bodyParser) checkTogether() *Error {
	b := p.body
	b.MaxTokens = p.maxTokens
	if p.maxCompletion >= 0 {
		b.MaxTokens = p.maxCompletion
	}
	b.Removed = p.sent != ""
	switch {
	case b.Removed && p.lim.Strict:
		return ErrBadRequest(reason.TransferParams, p.sent, "%s is not accepted from clients.", p.sent)
	case p.hasStreamOptions && !b.Stream:
		return ErrBadRequest(reason.BadField, "stream_options", "stream_options can only be defined when stream is true.")
	}
	switch {
	case b.Shape != ShapeChat:
		b.rendered = RenderedRoute
	case p.media:
		b.rendered = RenderedMedia
	case p.promptText:
		b.rendered = RenderedText
	}
	switch {
	case p.bestOf > 1:
		b.Unsplittable = UnsplitBestOf
	case p.echo:
		b.Unsplittable = UnsplitEcho
	case p.promptLogprobs:
		b.Unsplittable = UnsplitLogprobs
	case p.beam:
		b.Unsplittable = UnsplitBeam
	case p.embeds:
		b.Unsplittable = UnsplitEmbedding
	case p.background:
		b.Unsplittable = UnsplitBackground
	case b.Previous != "":
		b.Unsplittable = unsplitPrevious
	case p.serverTools:
		b.Unsplittable = UnsplitServerTools
	case p.truncates:
		b.Unsplittable = UnsplitTruncation
	case b.MaxTokens == 0 || b.MaxTokens == 1:
		b.Unsplittable = UnsplitOneToken
	case b.N > 1: // these two last: where nothing else forbids it the choices may be served one by one
		b.Unsplittable = UnsplitN
	case b.Prompts > 1:
		b.Unsplittable = unsplitPrompts
	}
	return nil
}
