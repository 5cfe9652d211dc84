package choices

import (
	"slices"
	"strconv"
	"strings"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// sum returns the usage of all choices as one engine would tell it: the first that came, every whole number in it the sum, with
// the members that only others have after its own. What is said of a prompt is counted once for all its choices, from the
// first of them that tells its usage. It returns nil if none does.
func (m *Merger) sum(usages [][]byte) []byte {
	var all []counts
	prompt := -1
	for k, raw := range usages {
		if raw == nil {
			continue
		}
		all = append(all, counts{raw, k/m.n != prompt})
		prompt = k / m.n
	}
	if len(all) == 0 {
		return nil
	}
	return sumObjects(all, true)
}

// counts is one choice's usage, or what it has for one member.
type counts struct {
	raw   []byte
	first bool // of its prompt
}

// summed is a member of a usage.
type summed struct {
	key    string
	at     jsonscan.Span // of the value in the first object; empty if that lacks it
	values []counts
}

// sumObjects joins objects that were walked over before. top is false for those inside others.
func sumObjects(all []counts, top bool) []byte {
	members := membersOf(all, top)
	counts := make(map[string]int, len(members))
	base := all[0].raw
	edits := make([]jsonscan.Edit, 0, len(members))
	var others []byte
	for i := range members {
		m := &members[i]
		with, n := sumValues(m.values)
		counts[m.key] = n
		if top && m.key == "total_tokens" {
			continue // of other members
		}
		edits, others = m.put(edits, others, with)
	}
	if i := slices.IndexFunc(members, func(m summed) bool { return m.key == "total_tokens" }); top && i >= 0 {
		total := strconv.Itoa(counts["prompt_tokens"] + counts["completion_tokens"])
		edits, others = members[i].put(edits, others, []byte(total))
	}
	if len(others) > 0 {
		if len(edits) == 0 { // nothing stands before them
			others = others[1:]
		}
		end := len(base) - 1
		edits = append(edits, jsonscan.Edit{At: jsonscan.Span{From: end, To: end}, With: others})
	}
	return jsonscan.Splice(base, edits)
}

// put has the member's value be with: in its place, or after the first object's own members.
func (m *summed) put(edits []jsonscan.Edit, others, with []byte) ([]jsonscan.Edit, []byte) {
	if m.at.To > 0 {
		return append(edits, jsonscan.Edit{At: m.at, With: with}), others
	}
	return edits, append(append(openai.AppendString(append(others, ','), m.key), ':'), with...)
}

// membersOf returns the members of all, each with the values it has, in the order in which they first come.
func membersOf(all []counts, top bool) []summed {
	var out []summed
	for i, o := range all {
		s := jsonscan.Scanner{Bytes: o.raw, MaxDepth: answer.MaxAnswerDepth}
		m, ok := s.Object(1)
		for ok && s.Member(&m) {
			key, from := string(m.Key), s.Pos
			if !s.Value(1) {
				break
			}
			if top && !o.first && strings.HasPrefix(key, "prompt") {
				continue
			}
			at := slices.IndexFunc(out, func(m summed) bool { return m.key == key })
			if at < 0 {
				at = len(out)
				out = append(out, summed{key: key})
				if i == 0 {
					out[at].at = jsonscan.Span{From: from, To: s.Pos}
				}
			}
			out[at].values = append(out[at].values, counts{o.raw[from:s.Pos], o.first})
		}
	}
	return out
}

// sumValues joins the values of one member: objects by their members, whole numbers by their sum, which it returns too. Of
// anything else the first stays.
func sumValues(values []counts) ([]byte, int) {
	var objects []counts
	n, counts := 0, false
	for _, v := range values {
		if v.raw[0] == '{' {
			objects = append(objects, v)
			continue
		}
		s := jsonscan.Scanner{Bytes: v.raw}
		if one, is := s.Integer(); is {
			n, counts = n+one, true
		}
	}
	switch {
	case len(objects) > 0:
		return sumObjects(objects, false), 0
	case counts:
		return strconv.AppendInt(nil, int64(n), 10), n
	}
	return values[0].raw, 0
}
