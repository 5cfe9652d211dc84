package policies

import "strconv"

// why keeps what a choice was made from, as values: text is only made when somebody asks.
type why struct {
	rule            *rule
	tokens          int
	prefill, decode picked
}

func (w why) text(c Choice) string {
	if w.rule == nil {
		return string(c.Reason)
	}
	s := ""
	switch c.Reason {
	case Split:
		s = "prefill " + w.prefill.text() + " · "
	case ShortPrompt:
		s = "prompt " + strconv.Itoa(w.tokens) + "<" + strconv.Itoa(w.rule.minPrompt) + " · "
	}
	if c.Decode < 0 {
		return s + "nobody (rule " + w.rule.name + ")"
	}
	s += "decode " + w.decode.text()
	if w.rule.name != defaultName {
		s += " (rule " + w.rule.name + ")"
	}
	return s
}

func (p picked) text() string {
	s := p.by.String()
	switch {
	case p.by != leastLoad && p.by != powerOfTwo:
		return s
	case p.other < 0:
		return s + " " + strconv.Itoa(p.load) // no other to compare with
	case p.other == p.load:
		return s + " " + strconv.Itoa(p.load) + "=" + strconv.Itoa(p.other)
	default:
		return s + " " + strconv.Itoa(p.load) + "<" + strconv.Itoa(p.other)
	}
}
