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
	var room [96]byte
	b := room[:0]
	switch c.Reason {
	case Split:
		b = append(w.prefill.append(append(b, "prefill "...)), " · "...)
	case ShortPrompt:
		b = strconv.AppendInt(append(b, "prompt "...), int64(w.tokens), 10)
		b = strconv.AppendInt(append(b, '<'), int64(w.rule.minPrompt), 10)
		b = append(b, " · "...)
	}
	if c.Decode < 0 {
		b = append(append(b, "nobody (rule "...), w.rule.name...)
		return string(append(b, ')'))
	}
	b = w.decode.append(append(b, "decode "...))
	if w.rule.name != defaultName {
		b = append(append(append(b, " (rule "...), w.rule.name...), ')')
	}
	return string(b)
}

func (p picked) append(b []byte) []byte {
	b = append(b, p.by.String()...)
	if p.by == prefix {
		return p.appendPrefix(b)
	}
	if p.by != leastLoad && p.by != powerOfTwo {
		return b
	}
	b = strconv.AppendInt(append(b, ' '), int64(p.load), 10)
	switch {
	case p.other < 0: // no other to compare with
		return b
	case p.other == p.load:
		b = append(b, '=')
	default:
		b = append(b, '<')
	}
	return strconv.AppendInt(b, int64(p.other), 10)
}
