package answer

import (
	"slices"

	"pdrouter/router/openai/jsonscan"
)

// TakePromptIDs returns the array of the prompt's token ids in a whole answer to a chat, as it is written there, and a copy of the answer that
// has null in its place. ids is nil, and rest is p, if the answer has no such array, or one that is empty or has anything but token ids.
func TakePromptIDs(p []byte) (ids, rest []byte) {
	s := jsonscan.Scanner{Bytes: p, MaxDepth: MaxAnswerDepth}
	s.Space()
	var at jsonscan.Span
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		if string(m.Key) == "prompt_token_ids" {
			at = readIDs(&s)
		} else {
			s.Value(1)
		}
	}
	if at == (jsonscan.Span{}) || !s.End() {
		return nil, p
	}
	return at.Of(p), slices.Concat(p[:at.From], []byte("null"), p[at.To:])
}

// readIDs walks over a value, and returns where it lies if it is an array of token ids that has one at least.
func readIDs(s *jsonscan.Scanner) (at jsonscan.Span) {
	from, n, ids := s.Pos, 0, true
	if s.Peek() != '[' {
		s.Value(1)
		return at
	}
	for ok := s.Array(2); ok && s.Element(&n); {
		if id, is := s.Integer(); !is || id < 0 {
			ids = false
			ok = is || s.Value(2)
		}
	}
	if ids && n > 0 && s.Why == "" {
		at = jsonscan.Span{From: from, To: s.Pos}
	}
	return at
}
