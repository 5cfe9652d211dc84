package router

import "fmt"

// given walks over a value and reports whether it is not null.
func (p *bodyParser) given() bool {
	null := p.peek() == 'n'
	return p.value(1) && !null
}

func (p *bodyParser) model() {
	if p.peek() != '"' {
		if p.given() {
			p.refuse(reasonBadField, "model", "must be a string")
		}
		return
	}
	raw, escaped, ok := p.str()
	switch {
	case !ok:
	case escaped:
		p.body.model = string(unescape(nil, raw))
	default:
		p.body.model = string(raw)
	}
}

// boolean reads true, false or null, which is false.
func (p *bodyParser) boolean(param string) bool {
	c := p.peek()
	if p.value(1) && c != 't' && c != 'f' && c != 'n' {
		p.refuse(reasonBadField, param, "must be a boolean")
	}
	return c == 't'
}

// count reads an integer of at least least, or null, which is absent.
func (p *bodyParser) count(param string, least, absent int) int {
	n, ok := p.integer()
	switch {
	case ok && n >= least:
		return n
	case ok:
		p.refuse(reasonBadField, param, fmt.Sprintf("must be at least %d", least))
	case p.given():
		p.refuse(reasonBadField, param, "must be an integer")
	}
	return absent
}

func (p *bodyParser) cap(param string, n, most int) {
	if most > 0 && n > most {
		p.refuse(reasonOverCap, param, fmt.Sprintf("must be at most %d", most))
	}
}

// logprobs checks a number of log probabilities, where it is one, and reports whether the field is not null. Below 0 asks for the
// whole vocabulary.
func (p *bodyParser) logprobs(param string) bool {
	n, ok := p.integer()
	if !ok {
		return p.given()
	}
	if n < 0 && p.lim.Logprobs > 0 {
		n = p.lim.Logprobs + 1
	}
	p.cap(param, n, p.lim.Logprobs)
	return true
}

func (p *bodyParser) streamOptions() {
	if p.peek() != '{' {
		if p.given() {
			p.refuse(reasonBadField, "stream_options", "must be an object")
		}
		return
	}
	p.hasStreamOptions = true
	m, ok := p.object(2)
	for ok && p.member(&m) {
		if string(m.key) == "include_usage" {
			p.boolean("stream_options.include_usage")
		} else {
			p.value(2)
		}
	}
}

func (p *bodyParser) stop() {
	if p.peek() != '[' {
		if c := p.peek(); p.value(1) && c != '"' && c != 'n' {
			p.refuse(reasonBadField, "stop", "must be a string or an array of strings")
		}
		return
	}
	n := 0
	p.array(2)
	for p.element(&n) {
		if c := p.peek(); p.value(2) && c != '"' {
			p.refuse(reasonBadField, "stop", "must be a string or an array of strings")
		}
	}
	p.cap("stop", n, p.lim.Stop)
}

func (p *bodyParser) messages() {
	from, c := p.i, p.peek()
	if !p.value(1) {
		return
	}
	if p.body.shape != shapeChat {
		return
	}
	if c != '[' {
		p.refuse(reasonBadField, "messages", "must be an array")
	}
	p.body.promptBytes = p.i - from
}

const promptKinds = "must be a string, an array of strings, an array of token ids or an array of such arrays"

// prompt reads the four kinds of prompt. A chat body has none; there it is an unknown field.
func (p *bodyParser) prompt() {
	b := p.body
	switch c := p.peek(); {
	case b.shape == shapeChat:
		p.value(1)
	case c == '"':
		raw, _, _ := p.str()
		b.promptBytes = len(raw)
	case c == '[':
		p.array(2)
		p.prompts()
	case p.given():
		p.refuse(reasonBadField, "prompt", promptKinds)
	}
}

// prompts reads an array of prompts or of token ids, whose opening bracket is read. Its first element says which.
func (p *bodyParser) prompts() {
	b, n := p.body, 0
	first := byte(0)
	for p.element(&n) {
		c := p.peek()
		if c-'0' <= 9 {
			c = '0'
		}
		if n == 1 {
			first = c
		}
		switch {
		case c != first:
			p.value(2)
			p.refuse(reasonBadField, "prompt", promptKinds)
		case c == '"':
			raw, _, _ := p.str()
			b.promptBytes += len(raw)
		case c == '[':
			p.array(3)
			p.tokens()
		case c == '0':
			p.token()
		default:
			p.value(2)
			p.refuse(reasonBadField, "prompt", promptKinds)
		}
	}
	switch {
	case n == 0:
		p.refuse(reasonBadField, "prompt", "must not be empty")
	case first != '0':
		b.prompts = n
		p.cap("prompt", n, p.lim.Prompts)
	}
}

// tokens reads an array of token ids whose opening bracket is read.
func (p *bodyParser) tokens() {
	n := 0
	for p.element(&n) {
		p.token()
	}
	if n == 0 {
		p.refuse(reasonBadField, "prompt", "must not be empty")
	}
}

func (p *bodyParser) token() {
	p.body.promptIDs++
	if id, ok := p.integer(); !ok && p.why == "" {
		p.value(3)
		p.refuse(reasonBadField, "prompt", promptKinds)
	} else if id < 0 {
		p.refuse(reasonBadField, "prompt", "must not have negative token ids")
	}
}
