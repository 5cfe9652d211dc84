package load

import (
	"fmt"
	"math/rand/v2"
)

// tokenizer says what text a token is, so that a prompt has as many tokens as a trace says.
type tokenizer struct {
	bytes int // of text a token
	head  int // tokens that the engine's template puts before the prompt
	tail  int // and behind it
}

// WordTokens has tokens of about the size of a real tokenizer's: a blank and three letters. The modelled engines count so.
func WordTokens() tokenizer { return tokenizer{bytes: 4} }

// prompt is the text of so many tokens of a trace's blocks. The same id gives the same text at the same place in any prompt, so
// prompts with equal ids are equal as far as these go. It needs no escapes in JSON.
func (k tokenizer) prompt(blocks []int, tokens int) []byte {
	text := make([]byte, 0, len(blocks)*TraceBlock*k.bytes)
	for _, id := range blocks {
		text = k.block(text, id)
	}
	from, to := k.head*k.bytes, (tokens-k.tail)*k.bytes
	return text[from:max(from, to)] // a prompt that is shorter than the template is the template
}

// block appends the text of a block.
func (k tokenizer) block(text []byte, id int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEF"
	r := rand.New(rand.NewPCG(uint64(id), 0x626c6f636b))
	end := len(text) + TraceBlock*k.bytes
	for len(text) < end {
		bits := r.Uint64()
		for range min(12, end-len(text)) { // 5 of 64 bits each
			text = append(text, letters[bits&31])
			bits >>= 5
		}
	}
	for i := end - TraceBlock*k.bytes; k.bytes > 1 && i < end; i += k.bytes {
		text[i] = ' '
	}
	return text
}

// Arrivals are the requests of a trace for a model: each a chat with one turn whose answer has exactly the trace's tokens.
func (k tokenizer) Arrivals(trace []Request, model string) []Arrival {
	out := make([]Arrival, len(trace))
	for i, t := range trace {
		body := make([]byte, 0, 256+t.Input*k.bytes)
		body = fmt.Appendf(body, `{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"`, model, t.Output)
		body = append(append(body, k.prompt(t.Blocks, t.Input)...), `"}]}`...)
		out[i] = Arrival{At: t.At, Body: body, Prompt: t.Input, Tokens: t.Output}
	}
	return out
}
