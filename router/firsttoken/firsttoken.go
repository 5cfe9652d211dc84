// Package firsttoken decides whether the client of a split request may get the token that prefill has sampled, while decode goes on after it. It
// may if the answer is what one engine would give: the same tokens with the same probability, the same text, the same usage. All of it is
// pure. Package exchange asks it for a body before prefill is asked, and for prefill's answer before decode is asked.
package firsttoken

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// Result says from which engine the first token comes, or why it does not come from prefill.
type Result uint8

const (
	None        Result = iota // it was not asked for: the option is off, or the request was not split
	Prefill                   // the client gets prefill's token
	NotStreamed               // the answer has no first token of its own
	Body                      // the body asks for something that depends on where the answer begins
	NoTokenIDs                // prefill does not say the token ids of the prompt and of its token
	Engines                   // the engines cannot, or it is not known that they can
	Block                     // the token would begin a block of KV, or be the last of one
	Text                      // the token has no text of its own: it is a part of a character, a mark or reasoning, or it ends the answer
	Results
)

var names = [Results]string{"", "prefill", "not_streamed", "body", "no_token_ids", "engines", "block", "text"}

func (r Result) String() string { return names[r] }

// MarshalText returns the name.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the name.
func (r *Result) UnmarshalText(name []byte) error {
	i := slices.Index(names[:], string(name))
	if i < 0 {
		return fmt.Errorf("first_token %q is unknown", name)
	}
	*r = Result(i)
	return nil
}

// OfBody says whether the client may get prefill's token of that body, as far as the body says. With Prefill it returns what decode takes over.
func OfBody(b *openai.Body) (openai.Continued, Result) {
	if !b.Stream {
		return openai.Continued{}, NotStreamed
	}
	// An engine draws with a seed once for each token, so decode would draw for its first token as prefill has done. Of two marks in a row the
	// engine's text may have no space between them.
	c, ok := openai.ContinuationOf(b)
	if !ok || c.Seeded || c.Unspelled || b.Rendered() == openai.RenderedMedia || b.Rendered() == openai.RenderedText {
		return openai.Continued{}, Body
	}
	return c, Prefill
}

// Pair is what is known of the engines and of their hand-off. Zero stands for what is not known.
type Pair struct {
	Handed                    connector.Handed // by prefill
	PrefillBlock, DecodeBlock int              // tokens
	MaxLen                    int              // tokens of prompt and answer that decode has room for
	Max                       int              // tokens of the answer; below 0: as far as the model goes
}

// Fit says whether decode can take the KV of a prompt of n tokens for one that has prefill's token as well.
//
// Stock decode reads as many blocks as its own prompt has, counted from the end, and computes its last token itself. So prefill must have computed
// the whole prompt, in blocks that are all there, and the token must not need another block. If it were the last of a block, decode's
// prefix cache would have that block before the token's KV is computed, and keep it without that if the request ends meanwhile.
// An answer that may become longer than decode has room for is refused by some engines: the client must not have a part of it then.
func (p *Pair) Fit(n int) Result {
	size, h := p.PrefillBlock, &p.Handed
	switch {
	case size <= 0, size != p.DecodeBlock, h.Tokens != n, h.Groups != 1, h.Blocks != (n+size-1)/size, n+1 >= p.MaxLen, p.Max > p.MaxLen-n:
		return Engines
	case n%size == 0, (n+1)%size == 0:
		return Block
	}
	return Prefill
}

// Token is prefill's token as the first event of the answer has it, JSON as the engine wrote it.
type Token struct {
	ID, Created, Model json.RawMessage
	Role               json.RawMessage // of a chat; nil of others
	Text               json.RawMessage
	Prompt             []byte // the ids of the prompt, with commas between
	PromptTokens       int
	Token              []byte // its id
	Details            []byte // prompt_tokens_details of the usage, a member with a comma before; nil if there are none
}

// OfAnswer reads prefill's whole answer, which was taken the array of the prompt's token ids out of.
func OfAnswer(chat bool, body, ids []byte) (*Token, Result) {
	var a struct {
		ID, Created, Model json.RawMessage
		Choices            []struct {
			Text    json.RawMessage
			Message struct {
				Role, Content, Reasoning, Refusal json.RawMessage
				ReasoningContent                  json.RawMessage   `json:"reasoning_content"`
				ToolCalls                         []json.RawMessage `json:"tool_calls"`
			}
			Finish string        `json:"finish_reason"`
			Tokens []json.Number `json:"token_ids"`
		}
		Usage struct {
			Details map[string]any `json:"prompt_tokens_details"`
		}
	}
	if len(ids) < 2 || json.Unmarshal(body, &a) != nil || len(a.Choices) != 1 || len(a.Choices[0].Tokens) != 1 || !openai.Given(a.ID) || !openai.Given(a.Created) || !openai.Given(a.Model) {
		return nil, NoTokenIDs
	}
	c := &a.Choices[0]
	m := &c.Message
	t := &Token{ID: a.ID, Created: a.Created, Model: a.Model, Text: c.Text, Prompt: ids[1 : len(ids)-1], PromptTokens: bytes.Count(ids, []byte{','}) + 1, Token: []byte(c.Tokens[0])}
	if chat {
		t.Role, t.Text = m.Role, m.Content
	}
	var text string
	switch {
	case c.Finish != "length", openai.Given(m.Reasoning), openai.Given(m.ReasoningContent), openai.Given(m.Refusal), len(m.ToolCalls) > 0, chat && !openai.Given(m.Role):
		return nil, Text
	case json.Unmarshal(t.Text, &text) != nil, text == "", strings.ContainsRune(text, '\ufffd'):
		return nil, Text
	}
	maps.DeleteFunc(a.Usage.Details, func(_ string, v any) bool { return v == nil }) // a stream has no nulls there
	if details, err := json.Marshal(a.Usage.Details); err == nil && len(a.Usage.Details) > 0 {
		t.Details = append([]byte(`,"prompt_tokens_details":`), details...)
	}
	return t, Prefill
}
