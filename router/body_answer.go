package router

import (
	"bytes"
	"slices"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

// maxAnswerDepth is how deep an engine's objects and arrays may be nested.
const maxAnswerDepth = 512

// answer is what the router reads of an engine's JSON answer or of one event's data.
type answer struct {
	kv               []byte // the raw value of the top-level kv_transfer_params; nil if absent or null
	transfer         span   // that member, with the comma that goes with it; zero if absent
	promptTokens     int    // usage.prompt_tokens; usage.input_tokens, of messages without what was cached
	cachedTokens     int    // usage.prompt_tokens_details.cached_tokens and the like
	cachedBefore     int    // kv_transfer_params.remote_prefill_cached_tokens: what a prefill engine says of itself; 0 if it does not
	createdTokens    int    // of the prompt, those that are cached from now on
	completionTokens int    // usage.completion_tokens, usage.output_tokens
	hasUsage         bool   // usage is there and not null
	hasCached        bool   // cachedTokens was said
	hasCreated       bool   // createdTokens was said
	failed           bool   // a top-level "error" that is not null
	errCode          string // error.code where it is a word, for example transfer_failed
	errMessage       string // error.message, for the log; JSON escapes as written
}

// cached is how many tokens of the prompt the engine had cached, as far as it says.
func (a *answer) cached() int {
	if !a.hasCached {
		return a.cachedBefore
	}
	return a.cachedTokens
}

// created is how many tokens of the prompt the engine has cached for this request, below 0 if it does not say.
func (a *answer) created() int {
	if !a.hasCreated {
		return -1
	}
	return a.createdTokens
}

// parseAnswer reads a whole JSON answer or the data of one event. It reports false if p is not a JSON object.
// kv lies in p. If nothing of interest is in p, it is not parsed, and the answer is empty.
func parseAnswer(p []byte) (answer, bool) {
	var a answer
	if !mentions(p, `usage"`, `error"`, `kv_transfer_params"`) {
		from := bytes.TrimLeft(p, " \t\r\n")
		return a, len(from) > 0 && from[0] == '{'
	}
	s := jsonscan.Scanner{Bytes: p, MaxDepth: maxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch string(m.Key) {
		case "kv_transfer_params":
			null := s.Peek() == 'n'
			from := s.Pos
			if !readHandOff(&s, &a) {
				break
			}
			end, run := s.Pos, 0
			if !null {
				a.kv = p[from:end]
			}
			a.transfer.from, a.transfer.to = cut(m.Count-1, m.Comma, m.KeyStart, end, s.CommaAfter(), &run)
		case "usage":
			readUsage(&s, 1, &a, nil)
		case "response", "message": // of the events of a stream
			readInner(&s, &a, nil)
		case "error":
			a.failed = s.Peek() != 'n'
			readError(&s, &a)
		default:
			s.Value(1)
		}
	}
	if !s.End() {
		return answer{}, false
	}
	return a, true
}

// mentions reports whether one of the words is in p. Words are looked for by their first byte: without the quotation mark in front of
// them, which every member has, that takes a third to a half of the time.
func mentions(p []byte, words ...string) bool {
	for _, w := range words {
		if bytes.Contains(p, []byte(w)) {
			return true
		}
	}
	return false
}

// readHandOff walks over the hand-off, and reads on the way what is told of the prompt.
func readHandOff(s *jsonscan.Scanner, a *answer) bool {
	a.cachedBefore = 0
	if s.Peek() != '{' {
		return s.Value(1)
	}
	m, ok := s.Object(2)
	for ok && s.Member(&m) {
		if string(m.Key) == "remote_prefill_cached_tokens" {
			readAmount(s, 2, &a.cachedBefore)
			a.cachedBefore = max(a.cachedBefore, 0)
		} else {
			s.Value(2)
		}
	}
	return s.Why == ""
}

func readError(s *jsonscan.Scanner, a *answer) {
	switch s.Peek() {
	case '"':
		a.errMessage = readText(s)
		return
	case '{':
	default:
		s.Value(1)
		return
	}
	m, ok := s.Object(2)
	for ok && s.Member(&m) {
		switch key := string(m.Key); {
		case s.Peek() != '"':
			s.Value(2)
		case key == "code":
			a.errCode = readText(s)
		case key == "message":
			a.errMessage = readText(s)
		default:
			s.Value(2)
		}
	}
}

// readText reads a string, escapes as written, cut to what a log line bears.
func readText(s *jsonscan.Scanner) string {
	raw, _, _ := s.Str()
	return string(raw[:uncut(raw, maxErrorMessage)])
}

// uncut is how many bytes at most n there are of a string, as written, without cutting an escape.
func uncut(raw []byte, n int) int {
	if len(raw) <= n {
		return len(raw)
	}
	i := 0
	for {
		next := i + 1
		if raw[i] == '\\' {
			if next++; raw[i+1] == 'u' {
				next += 4
			}
		}
		if next > n {
			return i
		}
		i = next
	}
}

// stripAnswer takes the hand-off out of a whole answer, in its place, as stripTransferParams does; a is what parseAnswer has read of it.
// An engine names it once, at the top: then a is enough, and the answer is not walked over again.
func stripAnswer(p []byte, a *answer) ([]byte, bool) {
	if a.transfer != (span{}) && bytes.Count(p, transferName) == 1 && !bytes.Contains(p, escapedName) {
		return slices.Delete(p, a.transfer.from, a.transfer.to), true
	}
	return stripTransferParams(p[:0], p) // it is never longer, so it may lie in the same place
}

// transferName is in the name of every member of the hand-off, unless an escapedName is.
var transferName, escapedName = []byte("_transfer_params"), []byte(`\u00`)

// stripTransferParams appends p, a whole JSON answer or the data of one event, without the members kv_transfer_params
// and ec_transfer_params, at any depth; every other byte is kept. It reports false, and appends nothing, if p names
// them but is no JSON object: then it must not be relayed. dst may be p[:0], which loses p.
func stripTransferParams(dst, p []byte) ([]byte, bool) {
	if !namesTransfer(p) {
		return append(dst, p...), true
	}
	t := stripper{Scanner: jsonscan.Scanner{Bytes: p, MaxDepth: maxAnswerDepth}, dst: dst}
	t.Space()
	if c := t.Peek(); c != '{' && c != '[' || !t.walk(0) || !t.End() {
		return dst, false
	}
	return append(t.dst, p[t.from:]...), true
}

// namesTransfer reports whether JSON may have a member of the hand-off in it, however its name is written.
func namesTransfer(p []byte) bool {
	if bytes.Contains(p, transferName) {
		return true
	}
	var plain []byte
	from := 0
	for i := bytes.Index(p, escapedName); i >= 0 && i+6 <= len(p); {
		high, ok := jsonscan.HexDigit(p[i+4])
		low, is := jsonscan.HexDigit(p[i+5])
		if c := high<<4 | low; ok && is && (c == '_' || c-'a' < 26) {
			plain, from = append(append(plain, p[from:i]...), c), i+6
		}
		next := bytes.Index(p[i+1:], escapedName)
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return from > 0 && bytes.Contains(append(plain, p[from:]...), transferName)
}

// stripper is a scanner that copies what it walks over.
type stripper struct {
	jsonscan.Scanner
	dst  []byte
	from int // what is not yet copied
}

// walk copies one value without the transfer fields in it; depth is that of what holds it.
func (t *stripper) walk(depth int) bool {
	switch t.Peek() {
	case '{':
		m, ok := t.Object(depth + 1)
		run := 0
		for ok && t.Member(&m) {
			if !isTransferKey(m.Key) {
				ok = t.walk(depth + 1)
			} else if ok = t.Value(depth + 1); ok {
				end := t.Pos
				start, end := cut(m.Count-1, m.Comma, m.KeyStart, end, t.CommaAfter(), &run)
				t.dst = append(t.dst, t.Bytes[t.from:start]...)
				t.from = end
			}
		}
		return ok && t.Why == ""
	case '[':
		n := 0
		ok := t.Array(depth + 1)
		for ok && t.Element(&n) {
			ok = t.walk(depth + 1)
		}
		return ok && t.Why == ""
	default:
		return t.Value(depth)
	}
}

// stripEvent appends one whole event (see Frames) with its data stripped as stripTransferParams does. It reports
// false, and appends nothing, if the event names transfer params and cannot be stripped.
func stripEvent(dst, event []byte) ([]byte, bool) {
	if !namesTransfer(event) {
		return append(dst, event...), true
	}
	start, end, n := sse.DataSpan(event)
	if n != 1 || namesTransfer(event[:start]) || namesTransfer(event[end:]) {
		return dst, false
	}
	out, ok := stripTransferParams(append(dst, event[:start]...), event[start:end])
	if !ok {
		return dst, false
	}
	return append(out, event[end:]...), true
}
