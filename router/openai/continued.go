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

// ContinuationOf reads what a continuation takes over of the client's body: its members in order, as they were written. exact says
// that the engine will say the same as the first would have; ok is false if the stream cannot be continued at all.
func ContinuationOf(b *Body) (keep []byte, usage, exact, ok bool) {
	if b.Shape != ShapeCompletions && b.Shape != ShapeChat || !b.Stream || b.Passthrough != nil || b.N != 1 || b.Prompts != 1 {
		return nil, false, false, false
	}
	s := jsonscan.Scanner{Bytes: b.Raw, MaxDepth: maxBodyDepth}
	s.Space()
	m, more := s.Object(1)
	for more && s.Member(&m) {
		key, from := string(m.Key), s.Pos
		if !s.Value(1) {
			return nil, false, false, false
		}
		value := b.Raw[from:s.Pos]
		switch {
		case key == "cache_salt" && b.Sealed != "", key == "priority" && !b.Urgent:
		case key == "temperature":
			f, err := strconv.ParseFloat(string(value), 64)
			exact = err == nil && f == 0
			fallthrough
		case slices.Contains(continued, key):
			if len(keep)+len(value) > maxContinued {
				return nil, false, false, false
			}
			keep = append(append(append(keep, '"'), key...), `":`...)
			keep = append(append(keep, value...), ',')
		case key == "stream_options":
			var o map[string]any
			if json.Unmarshal(value, &o) != nil || o["continuous_usage_stats"] == true {
				return nil, false, false, false
			}
			usage = o["include_usage"] == true
		case slices.Contains(replaced, key), string(value) == "null", string(value) == "false" && (key == "echo" || key == "logprobs"):
		default:
			return nil, false, false, false
		}
	}
	return keep, usage, exact, s.Why == ""
}

// HideTokens appends the data of an event with null for the token ids that its client did not ask for, as an engine writes
// that was not asked.
func HideTokens(dst, p []byte) []byte {
	s := jsonscan.Scanner{Bytes: p, MaxDepth: answer.MaxAnswerDepth}
	from := 0
	hide := func(depth int) {
		s.Peek()
		at := s.Pos
		if s.Value(depth) {
			dst = append(append(dst, p[from:at]...), "null"...)
			from = s.Pos
		}
	}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch key := string(m.Key); {
		case key == "prompt_token_ids":
			hide(1)
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
					if k := string(c.Key); k == "prompt_token_ids" || k == "token_ids" {
						hide(3)
					} else {
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
