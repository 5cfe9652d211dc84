package openai

import (
	"encoding/json"
	"slices"
	"strconv"

	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// continued are the members of a body that mean the same to the engine that goes on. A body with others that are not in replaced
// is not continued: what they do depends on where the answer began, or on text that an engine keeps back.
var continued = []string{"model", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "stop_token_ids", "logit_bias", "user",
	"skip_special_tokens", "spaces_between_special_tokens", "priority"}

// replaced are those that the engine that goes on gets in another form, or does not need.
var replaced = []string{"prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "request_id", "metadata",
	"store", "add_generation_prompt", "chat_template", "kv_transfer_params", "ec_transfer_params", "n", "rid",
	"session_id", "session_params", "cache_salt"}

// maxContinued is how many bytes of such members are kept while a stream runs. A body with more is not continued.
const maxContinued = 64 << 10

// Continued is what a continuation takes over of a client's body.
type Continued struct {
	Keep      []byte // the members that hold for the other engine, in order and as they were written, each with a comma
	Usage     bool   // the client has asked for usage
	Max       int    // tokens of the answer; below 0: as far as the model goes
	Greedy    bool   // the engine will say the same as the first would have
	Seeded    bool   // what the first engine says depends on a seed and on how many tokens it has drawn
	Unspelled bool   // the text of a special token may depend on the one before
}

// ContinuationOf reads what a continuation takes over of the client's body. ok is false if the stream cannot be continued at all.
func ContinuationOf(b *Body) (c Continued, ok bool) {
	if b.Shape != ShapeCompletions && b.Shape != ShapeChat || !b.Stream || b.Passthrough != nil || b.N != 1 || b.Prompts != 1 {
		return c, false
	}
	if c.Max = b.MaxTokens; c.Max < 0 && b.Shape == ShapeCompletions {
		c.Max = completionTokens
	}
	s := jsonscan.Scanner{Bytes: b.Raw, MaxDepth: maxBodyDepth}
	s.Space()
	m, more := s.Object(1)
	for more && s.Member(&m) {
		key, from := string(m.Key), s.Pos
		if !s.Value(1) {
			return c, false
		}
		value := b.Raw[from:s.Pos]
		null := string(value) == "null"
		switch {
		case key == "cache_salt" && b.Sealed != "", key == "priority" && !b.Urgent:
		case key == "temperature":
			f, err := strconv.ParseFloat(string(value), 64)
			c.Greedy = err == nil && f == 0
			fallthrough
		case slices.Contains(continued, key):
			c.Seeded = c.Seeded || key == "seed" && !null
			c.Unspelled = c.Unspelled || (key == "skip_special_tokens" || key == "spaces_between_special_tokens") && !null && string(value) != "true"
			if len(c.Keep)+len(value) > maxContinued {
				return c, false
			}
			c.Keep = append(append(append(c.Keep, '"'), key...), `":`...)
			c.Keep = append(append(c.Keep, value...), ',')
		case key == "stream_options":
			var o map[string]any
			// engines take 1 and "yes" for true as well
			if json.Unmarshal(value, &o) != nil || o["continuous_usage_stats"] != nil && o["continuous_usage_stats"] != false {
				return c, false
			}
			c.Usage = o["include_usage"] == true
		case key == "max_tokens" && null && b.Shape == ShapeCompletions: // 16 tokens, or as far as the model goes: engines differ
			return c, false
		case key == "max_completion_tokens" && !null && b.Shape == ShapeCompletions: // engines may take it or not
			return c, false
		case slices.Contains(replaced, key), null, changesNothing(key, string(value)):
		default:
			return c, false
		}
	}
	return c, s.Why == ""
}

// completionTokens is how many tokens the answer to a completion has that does not say how many.
const completionTokens = 16

// changesNothing reports whether the member says what holds without it.
func changesNothing(key, value string) bool {
	switch key {
	case "echo", "logprobs":
		return value == "false"
	case "presence_penalty", "frequency_penalty":
		return value == "0" || value == "0.0"
	case "repetition_penalty":
		return value == "1" || value == "1.0"
	case "stop":
		return value == "[]"
	}
	return false
}

// HideTokens appends the data of an event with null for the token ids that its client did not ask for, as an engine writes
// that was not asked.
func HideTokens(dst, p []byte) []byte {
	return TakeTokens(dst, p, func(TokensOf, []byte) {})
}

// TokensOf says whose the token ids of an answer are.
type TokensOf uint8

// The prompt's, and the choice's.
const (
	TokensOfPrompt TokensOf = iota
	TokensOfChoice
)

// TakeTokens appends an answer of one choice, or the data of one event of it, with null for the token ids, and tells what stands there: an array,
// as the engine wrote it, or null.
func TakeTokens(dst, p []byte, tell func(TokensOf, []byte)) []byte {
	s := jsonscan.Scanner{Bytes: p, MaxDepth: answer.MaxAnswerDepth}
	from := 0
	hide := func(of TokensOf, depth int) {
		s.Peek()
		at := s.Pos
		if s.Value(depth) {
			tell(of, p[at:s.Pos])
			dst = append(append(dst, p[from:at]...), "null"...)
			from = s.Pos
		}
	}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch key := string(m.Key); {
		case key == "prompt_token_ids":
			hide(TokensOfPrompt, 1)
		case key == "choices" && s.Peek() == '[':
			n := 0
			s.Array(2)
			for s.Element(&n) {
				if s.Peek() != '{' {
					s.Value(2)
					continue
				}
				c, in := s.Object(3)
				for in && s.Member(&c) {
					switch string(c.Key) {
					case "prompt_token_ids":
						hide(TokensOfPrompt, 3)
					case "token_ids":
						hide(TokensOfChoice, 3)
					default:
						s.Value(3)
					}
				}
			}
		default:
			s.Value(1)
		}
	}
	return append(dst, p[from:]...)
}
