package tokens

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"

	"pdrouter/router/openai"
	"pdrouter/router/openai/jsonscan"
)

// Prompt is a chain of boundaries, one after each message of a chat; empty if nothing can be learned of the request.
type Prompt []Boundary

// Boundary is the end of a message within a prompt.
type Boundary struct {
	Sum   Sum  // of all up to here that a template may read, and of whose prompt it is
	User  bool // the message is neither the model's nor a tool's
	Bytes int  // of all up to here, as it was written
}

// Sum names a boundary within this process. Two that differ have different sums, but for a chance of 2^-128.
type Sum [2]uint64

// seeds are of this process, so that no client can make two boundaries of one sum.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// then returns the sum of all before and of what follows.
func (s Sum) then(b []byte) (next Sum) {
	var room [16]byte
	binary.LittleEndian.PutUint64(room[:], s[0])
	binary.LittleEndian.PutUint64(room[8:], s[1])
	for i, seed := range seeds {
		var h maphash.Hash
		h.SetSeed(seed)
		_, _ = h.Write(room[:]) // it never fails
		_, _ = h.Write(b)
		next[i] = h.Sum64()
	}
	return next
}

// user reports whether one of the messages is the user's, or the system's.
func (p Prompt) user() bool {
	for i := range p {
		if p[i].User {
			return true
		}
	}
	return false
}

// bytes is how long the prompt is, as it was written.
func (p Prompt) bytes() int {
	if len(p) == 0 {
		return 0
	}
	return p[len(p)-1].Bytes
}

// unread are the members of a chat that no template reads. All others make prompts different, known or not.
var unread = map[string]bool{
	"model": true, "messages": true, "cache_salt": true, // read on their own

	"stream": true, "stream_options": true, "n": true, "best_of": true, "use_beam_search": true, "max_tokens": true, "max_completion_tokens": true,
	"min_tokens": true, "temperature": true, "top_p": true, "top_k": true, "min_p": true, "seed": true, "stop": true, "stop_token_ids": true,
	"include_stop_str_in_output": true, "ignore_eos": true, "frequency_penalty": true, "presence_penalty": true, "repetition_penalty": true,
	"length_penalty": true, "logit_bias": true, "bad_words": true, "allowed_token_ids": true, "logprobs": true, "top_logprobs": true,
	"prompt_logprobs": true, "logprob_token_ids": true, "return_token_ids": true, "return_tokens_as_token_ids": true,
	"skip_special_tokens": true, "spaces_between_special_tokens": true, "user": true, "metadata": true, "store": true, "service_tier": true,
	"safety_identifier": true, "prompt_cache_key": true, "request_id": true, "rid": true, "session_id": true, "session_params": true,
	"priority": true, "kv_transfer_params": true, "ec_transfer_params": true, "vllm_xargs": true,
}

// PromptOf returns the boundaries of a chat. model is the model or adapter that is asked, tenant whose request it is. A prompt that is more than
// its text, or no chat, has none.
func PromptOf(model, tenant string, b *openai.Body) Prompt {
	if b.Shape != openai.ShapeChat || b.Rendered() == openai.RenderedMedia || b.Passthrough != nil {
		return nil
	}
	start := Sum{}.then([]byte(model)).then([]byte(tenant)).then(b.CacheSalt())
	var more Sum // of the members that a template may read, in any order
	var messages jsonscan.Span
	size := 0
	s := jsonscan.Scanner{Bytes: b.Raw, MaxDepth: maxDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		key, from := string(m.Key), s.Pos
		if ok = s.Value(1); !ok {
			break
		}
		switch {
		case key == "messages":
			messages = jsonscan.Span{From: from, To: s.Pos}
		case !unread[key]:
			is := Sum{}.then([]byte(key)).then(b.Raw[from:s.Pos])
			more[0], more[1] = more[0]+is[0], more[1]+is[1]
			size += s.Pos - from
		}
	}
	if s.Why != "" {
		return nil
	}
	var both [16]byte
	binary.LittleEndian.PutUint64(both[:], more[0])
	binary.LittleEndian.PutUint64(both[8:], more[1])
	return chain(b.Raw, messages, start.then(both[:]), size)
}

// stretch is how many tokens of a prompt of token ids stand in the place of a message.
const stretch = 64

// PromptOfIDs returns the sums of the beginnings of a prompt of token ids, each 64 tokens longer than the one before. They are sums as those of
// chats are: of prompts of one model, tenant and salt.
func PromptOfIDs(model, tenant string, salt []byte, ids []uint32) (sums []Sum) {
	s := Sum{}.then([]byte("ids")).then([]byte(model)).then([]byte(tenant)).then(salt)
	var room [4 * stretch]byte
	for ; len(ids) >= stretch; ids = ids[stretch:] {
		for i, id := range ids[:stretch] {
			binary.LittleEndian.PutUint32(room[4*i:], id)
		}
		s = s.then(room[:])
		sums = append(sums, s)
	}
	return sums
}

// maxDepth is how deep a body is nested at most; the body was read before.
const maxDepth = 128

// chain returns the boundaries of the messages, an array.
func chain(raw []byte, messages jsonscan.Span, sum Sum, size int) (p Prompt) {
	s := jsonscan.Scanner{Bytes: raw[:messages.To], Pos: messages.From, MaxDepth: maxDepth}
	n := 0
	for ok := s.Array(2); ok && s.Element(&n); {
		from, user := s.Pos, true
		if s.Peek() != '{' {
			return nil
		}
		m, in := s.Object(3)
		for in && s.Member(&m) {
			isRole, at := string(m.Key) == "role", s.Pos
			if in = s.Value(3); in && isRole {
				switch string(raw[at:s.Pos]) {
				case `"assistant"`, `"tool"`, `"function"`:
					user = false
				}
			}
		}
		ok = s.Why == ""
		sum = sum.then(raw[from:s.Pos])
		size += s.Pos - from
		p = append(p, Boundary{Sum: sum, User: user, Bytes: size})
	}
	if s.Why != "" {
		return nil
	}
	return p
}

// ParseIDs reads an array of token ids; nil if it is anything else, or empty.
func ParseIDs(array []byte) (ids []uint32) {
	s := jsonscan.Scanner{Bytes: array, MaxDepth: 1}
	s.Space()
	if s.Peek() != '[' {
		return nil
	}
	ids = make([]uint32, 0, 1+bytes.Count(array, []byte{','}))
	n := 0
	for ok := s.Array(1); ok && s.Element(&n); {
		id, is := s.Integer()
		if !is || id < 0 || id > math.MaxUint32 {
			return nil
		}
		ids = append(ids, uint32(id))
	}
	if !s.End() || len(ids) == 0 {
		return nil
	}
	return ids
}
