// Package answer reads engines' answers and events: their usage, errors and transfer parameters. It takes out of them what clients must
// not see, and puts in what only the gateway knows. It builds nothing and knows no request; package openai has the bodies of those.
package answer

import (
	"bytes"
	"slices"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

// MaxAnswerDepth is how deep an engine's objects and arrays may be nested.
const MaxAnswerDepth = 512

// Answer is what the router reads of an engine's JSON answer or of one event's data.
type Answer struct {
	KVParams         []byte        // the raw value of the top-level kv_transfer_params; nil if absent or null
	transfer         jsonscan.Span // that member, with the comma that goes with it; zero if absent
	PromptTokens     int           // usage.prompt_tokens; usage.input_tokens, of messages without what was cached
	CachedTokens     int           // usage.prompt_tokens_details.cached_tokens and the like
	cachedBefore     int           // kv_transfer_params.remote_prefill_cached_tokens: what a prefill engine says of itself; 0 if it does not
	createdTokens    int           // of the prompt, those that are cached from now on
	CompletionTokens int           // usage.completion_tokens, usage.output_tokens
	HasUsage         bool          // usage is there and not null
	hasCached        bool          // cachedTokens was said
	hasCreated       bool          // createdTokens was said
	Failed           bool          // a top-level "error" that is not null
	ErrorCode        string        // error.code where it is a word, for example transfer_failed
	ErrorMessage     string        // error.message, for the log; JSON escapes as written
}

// Cached is how many tokens of the prompt the engine had cached, as far as it says.
func (a *Answer) Cached() int {
	if !a.hasCached {
		return a.cachedBefore
	}
	return a.CachedTokens
}

// SaysCached reports whether the engine says how many tokens of the prompt it had cached.
func (a *Answer) SaysCached() bool { return a.hasCached || a.cachedBefore > 0 }

// Created is how many tokens of the prompt the engine has cached for this request, below 0 if it does not say.
func (a *Answer) Created() int {
	if !a.hasCreated {
		return -1
	}
	return a.createdTokens
}

// Parse reads a whole JSON answer or the data of one event. It reports false if p is not a JSON object.
// kv lies in p. If nothing of interest is in p, it is not parsed, and the answer is empty.
func Parse(p []byte) (Answer, bool) {
	var a Answer
	if !mentions(p, `usage"`, `error"`, `kv_transfer_params"`) {
		from := bytes.TrimLeft(p, " \t\r\n")
		return a, len(from) > 0 && from[0] == '{'
	}
	s := jsonscan.Scanner{Bytes: p, MaxDepth: MaxAnswerDepth}
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
				a.KVParams = p[from:end]
			}
			a.transfer.From, a.transfer.To = jsonscan.CutMember(m.Count-1, m.Comma, m.KeyStart, end, s.CommaAfter(), &run)
		case "usage":
			readUsage(&s, 1, &a, nil)
		case "response", "message": // of the events of a stream
			readInner(&s, &a, nil)
		case "error":
			a.Failed = s.Peek() != 'n'
			readError(&s, &a)
		default:
			s.Value(1)
		}
	}
	if !s.End() {
		return Answer{}, false
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
func readHandOff(s *jsonscan.Scanner, a *Answer) bool {
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

func readError(s *jsonscan.Scanner, a *Answer) {
	switch s.Peek() {
	case '"':
		a.ErrorMessage = ReadText(s)
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
			a.ErrorCode = ReadText(s)
		case key == "message":
			a.ErrorMessage = ReadText(s)
		default:
			s.Value(2)
		}
	}
}

// MaxErrorMessage is the most bytes of an error's message that are read, and that a client is sent.
const MaxErrorMessage = 1024

// ReadText reads a string, escapes as written, cut to what a log line bears.
func ReadText(s *jsonscan.Scanner) string {
	raw, _, _ := s.Str()
	return string(raw[:uncut(raw, MaxErrorMessage)])
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

// Strip takes the hand-off out of a whole answer, in its place, as StripTransferParams does; a is what Parse has read of it.
// An engine names it once, at the top: then a is enough, and the answer is not walked over again.
func Strip(p []byte, a *Answer) ([]byte, bool) {
	if a.transfer != (jsonscan.Span{}) && bytes.Count(p, transferName) == 1 && !bytes.Contains(p, escapedName) {
		return slices.Delete(p, a.transfer.From, a.transfer.To), true
	}
	return StripTransferParams(p[:0], p) // it is never longer, so it may lie in the same place
}

// transferName is in the name of every member of the hand-off, unless an escapedName is.
var transferName, escapedName = []byte("_transfer_params"), []byte(`\u00`)

// StripTransferParams appends p, a whole JSON answer or the data of one event, without the members kv_transfer_params
// and ec_transfer_params, at any depth; every other byte is kept. It reports false, and appends nothing, if p names
// them but is no JSON object: then it must not be relayed. dst may be p[:0], which loses p.
func StripTransferParams(dst, p []byte) ([]byte, bool) {
	if !NamesTransfer(p) {
		return append(dst, p...), true
	}
	t := stripper{Scanner: jsonscan.Scanner{Bytes: p, MaxDepth: MaxAnswerDepth}, dst: dst}
	t.Space()
	if c := t.Peek(); c != '{' && c != '[' || !t.walk(0) || !t.End() {
		return dst, false
	}
	return append(t.dst, p[t.from:]...), true
}

// NamesTransfer reports whether JSON may have a member of the hand-off in it, however its name is written.
func NamesTransfer(p []byte) bool {
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
			if !IsTransferKey(m.Key) {
				ok = t.walk(depth + 1)
			} else if ok = t.Value(depth + 1); ok {
				end := t.Pos
				start, end := jsonscan.CutMember(m.Count-1, m.Comma, m.KeyStart, end, t.CommaAfter(), &run)
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

// StripEvent appends one whole event (see Frames) with its data stripped as StripTransferParams does. It reports
// false, and appends nothing, if the event names transfer params and cannot be stripped.
func StripEvent(dst, event []byte) ([]byte, bool) {
	if !NamesTransfer(event) {
		return append(dst, event...), true
	}
	start, end, n := sse.DataSpan(event)
	if n != 1 || NamesTransfer(event[:start]) || NamesTransfer(event[end:]) {
		return dst, false
	}
	out, ok := StripTransferParams(append(dst, event[:start]...), event[start:end])
	if !ok {
		return dst, false
	}
	return append(out, event[end:]...), true
}

// ObjectNamesTransfer reports whether a JSON object has transfer fields, at any depth and however they are written. ok is false if value is
// no JSON object, has a key twice, or is deeper than maxDepth.
func ObjectNamesTransfer(value []byte, maxDepth int) (names, ok bool) {
	t := stripper{Scanner: jsonscan.Scanner{Bytes: value, MaxDepth: maxDepth, Unique: true}}
	t.Space()
	ok = t.Peek() == '{' && t.walk(0) && t.End()
	return t.from > 0, ok
}

// IsTransferKey reports whether an engine would take hand-off instructions from a member of that name.
func IsTransferKey(key []byte) bool {
	return string(key) == "kv_transfer_params" || string(key) == "ec_transfer_params"
}
