package router

import (
	"slices"
	"strconv"
)

// usageSpans are where the numbers lie that tell of cached tokens. The zero span is none.
type usageSpans struct {
	cached  span // cached_tokens of the details
	turn    span // the only element of cached_tokens_per_turn
	read    span // cache_read_input_tokens
	created span // created_cache_tokens or cache_write_tokens of the details, or cache_creation_input_tokens
	input   span // input_tokens, which of messages is without what was cached or is cached now
}

// inner reads the usage of an answer that is within an event.
func (s *scanner) inner(a *answer, at *usageSpans) {
	if s.peek() != '{' {
		s.value(1)
		return
	}
	m, ok := s.object(2)
	for ok && s.member(&m) {
		if string(m.key) == "usage" {
			s.usage(2, a, at)
		} else {
			s.value(2)
		}
	}
}

// usage reads a usage in any shape's form; depth is that of what holds it. at, if not nil, gets where the numbers lie.
func (s *scanner) usage(depth int, a *answer, at *usageSpans) {
	if s.peek() != '{' {
		s.value(depth)
		return
	}
	a.hasUsage = true
	depth++
	messages := false
	m, ok := s.object(depth)
	for ok && s.member(&m) {
		from := s.i
		switch string(m.key) {
		case "prompt_tokens":
			s.amount(depth, &a.promptTokens)
		case "input_tokens":
			if s.amount(depth, &a.promptTokens) && at != nil {
				at.input = span{from, s.i}
			}
		case "completion_tokens", "output_tokens":
			s.amount(depth, &a.completionTokens)
		case "prompt_tokens_details", "input_tokens_details":
			s.usageDetails(depth, a, at)
		case "cache_read_input_tokens":
			if messages = s.amount(depth, &a.cachedTokens); messages {
				a.hasCached = true
				if at != nil {
					at.read = span{from, s.i}
				}
			}
		case "cache_creation_input_tokens":
			s.created(depth, from, a, at)
		default:
			s.value(depth)
		}
	}
	if messages {
		a.promptTokens += a.cachedTokens + a.createdTokens
	}
}

func (s *scanner) usageDetails(depth int, a *answer, at *usageSpans) {
	if s.peek() != '{' {
		s.value(depth)
		return
	}
	depth++
	m, ok := s.object(depth)
	for ok && s.member(&m) {
		from := s.i
		switch key := string(m.key); {
		case key == "cached_tokens":
			if s.amount(depth, &a.cachedTokens) {
				a.hasCached = true
				if at != nil {
					at.cached = span{from, s.i}
				}
			}
		case key == "created_cache_tokens" || key == "cache_write_tokens":
			s.created(depth, from, a, at)
		case key == "cached_tokens_per_turn" && s.peek() == '[' && at != nil:
			at.turn = s.only(depth)
		default:
			s.value(depth)
		}
	}
}

// created reads how many tokens of the prompt are cached from now on.
func (s *scanner) created(depth, from int, a *answer, at *usageSpans) {
	if a.hasCreated = s.amount(depth, &a.createdTokens); a.hasCreated && at != nil {
		at.created = span{from, s.i}
	}
}

// only walks over an array and returns where its element is, if there is exactly one and that is a number.
func (s *scanner) only(depth int) (at span) {
	n, turns := 0, 0
	for ok := s.array(depth + 1); ok && s.element(&n); {
		from := s.i
		if s.amount(depth+1, &turns) {
			at = span{from, s.i}
		}
	}
	if n != 1 {
		return span{}
	}
	return at
}

// amount reads a number into n, and walks over anything else.
func (s *scanner) amount(depth int, n *int) bool {
	v, ok := s.integer()
	if ok {
		*n = v
	} else {
		s.value(depth)
	}
	return ok
}

// countsCached reports whether an engine says in b how many tokens were cached: a cheap test before b is parsed.
func countsCached(b []byte) bool {
	return mentions(b, `cached_tokens"`, `cache_read_input_tokens"`)
}

// tellCached has b[from:], a whole JSON answer or one event of a stream, say that so many tokens of the prompt were cached,
// and that so many are from now on, wherever the engine says how many. Every other byte is kept, and so is the second number
// if created is below 0.
func tellCached(b []byte, from, cached, created int) []byte {
	if !countsCached(b[from:]) {
		return b
	}
	to := len(b)
	if b[from] != '{' {
		start, end, n := payloadSpan(b[from:])
		if n != 1 {
			return b
		}
		from, to = from+start, from+end
	}
	var a answer
	var at usageSpans
	s := scanner{b: b[from:to], maxDepth: maxAnswerDepth}
	s.space()
	m, ok := s.object(1)
	for ok && s.member(&m) {
		switch string(m.key) {
		case "usage":
			s.usage(1, &a, &at)
		case "response", "message":
			s.inner(&a, &at)
		default:
			s.value(1)
		}
	}
	if !s.end() {
		return b
	}
	cached = min(cached, a.promptTokens)
	if created < 0 || !a.hasCreated {
		created = a.createdTokens
	}
	created = min(created, a.promptTokens-cached)
	type number struct {
		at span
		is int
	}
	numbers := append(make([]number, 0, 5), number{at.cached, cached}, number{at.turn, cached}, number{at.created, created})
	var room [20]byte
	if at.read != (span{}) {
		numbers = append(numbers, number{at.read, cached})
		if at.input != (span{}) { // the sum stays the length of the prompt
			input, _ := strconv.Atoi(string(at.input.of(s.b)))
			numbers = append(numbers, number{at.input, input + a.cachedTokens + a.createdTokens - cached - created})
		}
	}
	slices.SortFunc(numbers, func(x, y number) int { return y.at.from - x.at.from }) // the last first, so that the others stay
	for _, n := range numbers {
		if n.at != (span{}) {
			b = slices.Replace(b, from+n.at.from, from+n.at.to, strconv.AppendInt(room[:0], int64(n.is), 10)...)
		}
	}
	return b
}
