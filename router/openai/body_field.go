package openai

import (
	"fmt"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

// given walks over a value and reports whether it is not null.
func (p *bodyParser) given() bool {
	null := p.Peek() == 'n'
	return p.Value(p.depth) && !null
}

func (p *bodyParser) model() { p.body.Model = p.text("model") }

// boolean reads true, false or null, which is false.
func (p *bodyParser) boolean(param string) bool {
	c := p.Peek()
	if p.Value(p.depth) && c != 't' && c != 'f' && c != 'n' {
		p.refuse(reason.BadField, param, "must be a boolean")
	}
	return c == 't'
}

// count reads an integer of at least least, or null, which is absent.
func (p *bodyParser) count(param string, least, absent int) int {
	n, ok := p.Integer()
	switch {
	case ok && n >= least:
		return n
	case ok:
		p.refuse(reason.BadField, param, fmt.Sprintf("must be at least %d", least))
	case p.given():
		p.refuse(reason.BadField, param, "must be an integer")
	}
	return absent
}

// whole reads a whole number, or null, which is 0.
func (p *bodyParser) whole(param string) int {
	n, ok := p.Integer()
	if !ok && p.given() {
		p.refuse(reason.BadField, param, "must be an integer of at most 18 digits")
	}
	return n
}

// many walks over a value, and counts its elements if it is an array.
func (p *bodyParser) many() (n int) {
	if p.Peek() != '[' {
		p.Value(p.depth)
		return 0
	}
	for ok := p.Array(p.depth + 1); ok && p.Element(&n); {
		ok = p.Value(p.depth + 1)
	}
	return n
}

// batch reads an array of conversations, each of which is a prompt.
func (p *bodyParser) batch(param string) {
	if p.Peek() != '[' {
		if p.Value(p.depth) {
			p.refuse(reason.BadField, param, "must be an array")
		}
		return
	}
	n := 0
	for ok := p.Array(p.depth + 1); ok && p.Element(&n); {
		ok = p.look(forContent, p.depth+1)
	}
	p.body.Prompts = max(n, 1)
	p.cap(param, n, p.lim.Prompts, atMostElements)
}

// What a number, and the length of a list, must be.
const (
	atMost         = "must be at most %d"
	atMostElements = "must have at most %d elements"
)

// cap refuses what is more than most, if most is more than 0, in the words of must.
func (p *bodyParser) cap(param string, n, most int, must string) {
	if most > 0 && n > most {
		p.refuse(reason.OverCap, param, fmt.Sprintf(must, most))
	}
}

// logprobs checks a number of log probabilities, where it is one, and reports whether the field is not null. Below 0 asks for the
// whole vocabulary.
func (p *bodyParser) logprobs(param string) bool {
	n, ok := p.Integer()
	if !ok {
		return p.given()
	}
	if n < 0 && p.lim.Logprobs > 0 {
		n = p.lim.Logprobs + 1
	}
	p.cap(param, n, p.lim.Logprobs, atMost)
	return true
}

func (p *bodyParser) streamOptions() {
	if p.Peek() != '{' {
		if p.given() {
			p.refuse(reason.BadField, "stream_options", "must be an object")
		}
		return
	}
	p.hasStreamOptions = true
	m, ok := p.Object(2)
	for ok && p.Member(&m) {
		if string(m.Key) == "include_usage" {
			p.boolean("stream_options.include_usage")
		} else {
			p.Value(2)
		}
	}
}

func (p *bodyParser) stop(param string) {
	const want = "must be a string or an array of strings"
	if p.Peek() != '[' {
		if c := p.Peek(); p.Value(p.depth) && c != '"' && c != 'n' {
			p.refuse(reason.BadField, param, want)
		}
		return
	}
	n := 0
	p.Array(p.depth + 1)
	for p.Element(&n) {
		if c := p.Peek(); p.Value(p.depth+1) && c != '"' {
			p.refuse(reason.BadField, param, want)
		}
	}
	p.cap(param, n, p.lim.Stop, atMostElements)
}

// text reads a string, decoded. Null is the empty one.
func (p *bodyParser) text(param string) string {
	if p.Peek() != '"' {
		if p.given() {
			p.refuse(reason.BadField, param, "must be a string")
		}
		return ""
	}
	raw, escaped, ok := p.Str()
	switch {
	case !ok:
		return ""
	case escaped:
		return string(jsonscan.Unescape(nil, raw))
	}
	return string(raw)
}

const promptKinds = "must be a string, an array of strings, an array of token ids or an array of such arrays"

// prompt reads the four kinds of prompt.
func (p *bodyParser) prompt() {
	b := p.body
	switch c := p.Peek(); {
	case c == '"':
		raw, _, _ := p.Str()
		b.promptBytes = len(raw)
	case c == '[':
		p.Array(2)
		p.prompts()
	case p.given():
		p.refuse(reason.BadField, "prompt", promptKinds)
	}
}

// prompts reads an array of prompts or of token ids, whose opening bracket is read. Its first element says which.
func (p *bodyParser) prompts() {
	b, n := p.body, 0
	first := byte(0)
	for p.Element(&n) {
		c := p.Peek()
		if c-'0' <= 9 {
			c = '0'
		}
		if n == 1 {
			first = c
		}
		switch {
		case c != first:
			p.Value(2)
			p.refuse(reason.BadField, "prompt", promptKinds)
		case c == '"':
			raw, _, _ := p.Str()
			b.promptBytes += len(raw)
		case c == '[':
			p.Array(3)
			p.tokens("prompt")
		case c == '0':
			p.token("prompt")
		default:
			p.Value(2)
			p.refuse(reason.BadField, "prompt", promptKinds)
		}
	}
	switch {
	case n == 0:
		p.refuse(reason.BadField, "prompt", "must not be empty")
	case first != '0':
		b.Prompts = n
		p.cap("prompt", n, p.lim.Prompts, atMostElements)
	}
}

// tokenIDs reads a prompt that can only be an array of token ids.
func (p *bodyParser) tokenIDs(param string) {
	if p.Peek() != '[' {
		if p.Value(1) {
			p.refuse(reason.BadField, param, tokenKinds)
		}
		return
	}
	p.Array(2)
	p.tokens(param)
}

const tokenKinds = "must be an array of token ids"

// tokens reads an array of token ids whose opening bracket is read.
func (p *bodyParser) tokens(param string) {
	n := 0
	for p.Element(&n) {
		p.token(param)
	}
	if n == 0 {
		p.refuse(reason.BadField, param, "must not be empty")
	}
}

func (p *bodyParser) token(param string) {
	p.body.promptIDs++
	if id, ok := p.Integer(); !ok && p.Why == "" {
		p.Value(3)
		kinds := promptKinds
		if param != "prompt" {
			kinds = tokenKinds
		}
		p.refuse(reason.BadField, param, kinds)
	} else if id < 0 {
		p.refuse(reason.BadField, param, "must not have negative token ids")
	}
}
