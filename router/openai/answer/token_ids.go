package answer

import (
	"slices"

	"pdrouter/router/openai/jsonscan"
)

// TakePromptIDs returns the array of the prompt's token ids in a whole answer, as it is written there, and a copy of the answer that has null in
// its place. A chat's answer has it outermost, that to a completion in its first choice. ids is nil, and rest is p, if the answer has no such
// array, or one that is empty or has anything but token ids.
func TakePromptIDs(p []byte) (ids, rest []byte) {
	s := jsonscan.Scanner{Bytes: p, MaxDepth: MaxAnswerDepth}
	s.Space()
	var at jsonscan.Span
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch key := string(m.Key); {
		case key == "prompt_token_ids" && (s.Peek() == '[' || at == jsonscan.Span{}):
			at = readIDs(&s)
		case key == "choices" && s.Peek() == '[' && at == jsonscan.Span{}:
			at = idsOfChoices(&s)
		default:
			s.Value(1)
		}
	}
	if at == (jsonscan.Span{}) || !s.End() {
		return nil, p
	}
	return at.Of(p), slices.Concat(p[:at.From], []byte("null"), p[at.To:])
}

// idsOfChoices walks over the choices, and returns where the array of token ids lies in the first.
func idsOfChoices(s *jsonscan.Scanner) (at jsonscan.Span) {
	n := 0
	for ok := s.Array(2); ok && s.Element(&n); {
		if n > 1 || s.Peek() != '{' {
			s.Value(2)
			continue
		}
		m, in := s.Object(3)
		for in && s.Member(&m) {
			if string(m.Key) == "prompt_token_ids" {
				at = readIDs(s)
			} else {
				s.Value(3)
			}
		}
	}
	return at
}

// readIDs walks over a value, and returns where it lies if it is an array of token ids that has one at least. A long prompt has tens of
// thousands, so they are not read one by one as values.
func readIDs(s *jsonscan.Scanner) (at jsonscan.Span) {
	from := s.Pos
	if end := endOfIDs(s.Bytes, from); end > 0 {
		s.Pos = end
		return jsonscan.Span{From: from, To: end}
	}
	s.Value(1)
	return at
}

// endOfIDs returns where the array of token ids that begins at b[i] ends, 0 if there is none.
func endOfIDs(b []byte, i int) int {
	if i == len(b) || b[i] != '[' {
		return 0
	}
	digits, zero := 0, false // of the id so far; below 0: it has ended
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c-'0' <= 9:
			if digits < 0 || digits == maxIDDigits || zero {
				return 0
			}
			digits, zero = digits+1, digits == 0 && c == '0'
		case c == ',' && digits != 0:
			digits, zero = 0, false
		case c == ']' && digits != 0:
			return i + 1
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
			if digits > 0 {
				digits = -1
			}
		default:
			return 0
		}
	}
	return 0
}

// maxIDDigits is how many digits a token id may have: as many as fit into 32 bits.
const maxIDDigits = 10
