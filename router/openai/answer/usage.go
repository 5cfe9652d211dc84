package answer

import (
	"slices"
	"strconv"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

// usageSpans are where the numbers lie that tell of cached tokens. The zero span is none.
type usageSpans struct {
	cached  jsonscan.Span // cached_tokens of the details
	turn    jsonscan.Span // the only element of cached_tokens_per_turn
	read    jsonscan.Span // cache_read_input_tokens
	created jsonscan.Span // created_cache_tokens or cache_write_tokens of the details, or cache_creation_input_tokens
	input   jsonscan.Span // input_tokens, which of messages is without what was cached or is cached now
}

// readInner reads the usage of an answer that is within an event.
func readInner(s *jsonscan.Scanner, a *Answer, at *usageSpans) {
	if s.Peek() != '{' {
		s.Value(1)
		return
	}
	m, ok := s.Object(2)
	for ok && s.Member(&m) {
		if string(m.Key) == "usage" {
			readUsage(s, 2, a, at)
		} else {
			s.Value(2)
		}
	}
}

// readUsage reads a usage in any shape's form; depth is that of what holds it. at, if not nil, gets where the numbers lie.
func readUsage(s *jsonscan.Scanner, depth int, a *Answer, at *usageSpans) {
	if s.Peek() != '{' {
		s.Value(depth)
		return
	}
	a.HasUsage = true
	depth++
	messages := false
	m, ok := s.Object(depth)
	for ok && s.Member(&m) {
		from := s.Pos
		switch string(m.Key) {
		case "prompt_tokens":
			readAmount(s, depth, &a.PromptTokens)
		case "input_tokens":
			if readAmount(s, depth, &a.PromptTokens) && at != nil {
				at.input = jsonscan.Span{From: from, To: s.Pos}
			}
		case "completion_tokens", "output_tokens":
			readAmount(s, depth, &a.CompletionTokens)
		case "prompt_tokens_details", "input_tokens_details":
			readUsageDetails(s, depth, a, at)
		case "cache_read_input_tokens":
			if messages = readAmount(s, depth, &a.CachedTokens); messages {
				a.hasCached = true
				if at != nil {
					at.read = jsonscan.Span{From: from, To: s.Pos}
				}
			}
		case "cache_creation_input_tokens":
			readCreated(s, depth, from, a, at)
		default:
			s.Value(depth)
		}
	}
	if messages {
		a.PromptTokens += a.CachedTokens + a.createdTokens
	}
}

func readUsageDetails(s *jsonscan.Scanner, depth int, a *Answer, at *usageSpans) {
	if s.Peek() != '{' {
		s.Value(depth)
		return
	}
	depth++
	m, ok := s.Object(depth)
	for ok && s.Member(&m) {
		from := s.Pos
		switch key := string(m.Key); {
		case key == "cached_tokens":
			if readAmount(s, depth, &a.CachedTokens) {
				a.hasCached = true
				if at != nil {
					at.cached = jsonscan.Span{From: from, To: s.Pos}
				}
			}
		case key == "created_cache_tokens" || key == "cache_write_tokens":
			readCreated(s, depth, from, a, at)
		case key == "cached_tokens_per_turn" && s.Peek() == '[' && at != nil:
			at.turn = readOnlyTurn(s, depth)
		default:
			s.Value(depth)
		}
	}
}

// readCreated reads how many tokens of the prompt are cached from now on.
func readCreated(s *jsonscan.Scanner, depth, from int, a *Answer, at *usageSpans) {
	if a.hasCreated = readAmount(s, depth, &a.createdTokens); a.hasCreated && at != nil {
		at.created = jsonscan.Span{From: from, To: s.Pos}
	}
}

// readOnlyTurn walks over an array and returns where its element is, if there is exactly one and that is a number.
func readOnlyTurn(s *jsonscan.Scanner, depth int) (at jsonscan.Span) {
	n, turns := 0, 0
	for ok := s.Array(depth + 1); ok && s.Element(&n); {
		from := s.Pos
		if readAmount(s, depth+1, &turns) {
			at = jsonscan.Span{From: from, To: s.Pos}
		}
	}
	if n != 1 {
		return jsonscan.Span{}
	}
	return at
}

// readAmount reads a number into n, and walks over anything else.
func readAmount(s *jsonscan.Scanner, depth int, n *int) bool {
	v, ok := s.Integer()
	if ok {
		*n = v
	} else {
		s.Value(depth)
	}
	return ok
}

// HasCached reports whether an engine says in b how many tokens were cached: a cheap test before b is parsed.
func HasCached(b []byte) bool {
	return mentions(b, `cached_tokens"`, `cache_read_input_tokens"`)
}

// SetCached has b[from:], a whole JSON answer or one event of a stream, say that so many tokens of the prompt were cached,
// and that so many are from now on, wherever the engine says how many. Every other byte is kept, and so is the second number
// if created is below 0.
func SetCached(b []byte, from, cached, created int) []byte {
	if !HasCached(b[from:]) {
		return b
	}
	to := len(b)
	if b[from] != '{' {
		start, end, n := sse.DataSpan(b[from:])
		if n != 1 {
			return b
		}
		from, to = from+start, from+end
	}
	var a Answer
	var at usageSpans
	s := jsonscan.Scanner{Bytes: b[from:to], MaxDepth: MaxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch string(m.Key) {
		case "usage":
			readUsage(&s, 1, &a, &at)
		case "response", "message":
			readInner(&s, &a, &at)
		default:
			s.Value(1)
		}
	}
	if !s.End() {
		return b
	}
	cached = min(cached, a.PromptTokens)
	if created < 0 || !a.hasCreated {
		created = a.createdTokens
	}
	created = min(created, a.PromptTokens-cached)
	type number struct {
		at jsonscan.Span
		is int
	}
	numbers := append(make([]number, 0, 5), number{at.cached, cached}, number{at.turn, cached}, number{at.created, created})
	var room [20]byte
	if at.read != (jsonscan.Span{}) {
		numbers = append(numbers, number{at.read, cached})
		if at.input != (jsonscan.Span{}) { // the sum stays the length of the prompt
			input, _ := strconv.Atoi(string(at.input.Of(s.Bytes)))
			numbers = append(numbers, number{at.input, input + a.CachedTokens + a.createdTokens - cached - created})
		}
	}
	slices.SortFunc(numbers, func(x, y number) int { return y.at.From - x.at.From }) // the last first, so that the others stay
	for _, n := range numbers {
		if n.at != (jsonscan.Span{}) {
			b = slices.Replace(b, from+n.at.From, from+n.at.To, strconv.AppendInt(room[:0], int64(n.is), 10)...)
		}
	}
	return b
}

// ReadUsage reads the usage that the scanner stands at, at that depth of objects, into a.
func ReadUsage(s *jsonscan.Scanner, depth int, a *Answer) { readUsage(s, depth, a, nil) }
