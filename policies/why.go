package policies

import "strconv"

// why keeps what a choice was made from, as values: text is only made when somebody asks.
type why struct {
	rule            *rule
	tokens          int32
	price           float32 // of the path that cost has taken
	prefill, decode picked
}

func (w why) text(c Choice) string {
	if w.rule == nil {
		return string(c.Reason)
	}
	var room [96]byte
	b := room[:0]
	if w.rule.cost && c.Decode >= 0 {
		b = strconv.AppendFloat(append(b, "cost "...), float64(w.price), 'f', 3, 64)
		b = strconv.AppendFloat(append(b, ": first token in "...), float64(c.TTFT), 'f', 2, 64)
		b = append(b, " s"...)
		if c.Move > 0 {
			b = append(b, ", after a move"...)
		}
		return string(b) // "cost 0.123: first token in 0.42 s"
	}
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

// append says how an engine was taken: "least_load 0<2" by the requests in flight of it and of another, "prefix 79 cached (another 512), 2 in
// flight", "scored 2.50 (another 1.25)", or the policy's name alone.
func (p picked) append(b []byte) []byte {
	b = append(b, p.by.name...)
	switch p.by.name {
	case "prefix":
		b = append(strconv.AppendInt(append(b, ' '), int64(p.cached), 10), " cached"...)
		if p.most > p.cached {
			b = append(strconv.AppendInt(append(b, " (another "...), int64(p.most), 10), ')')
		}
		return append(strconv.AppendInt(append(b, ", "...), int64(p.load), 10), " in flight"...)
	case "least_load", "power_of_two":
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
	case "round_robin", "random":
		return b
	}
	b = strconv.AppendFloat(append(b, ' '), float64(p.score), 'f', 2, 64)
	if p.other >= 0 {
		b = append(strconv.AppendFloat(append(b, " (another "...), float64(p.next), 'f', 2, 64), ')')
	}
	return b
}
