package openai

import "pdrouter/router/openai/jsonscan"

// The parts of a body that the prompt consists of, in the order in which engines put them together: what a chat goes on with comes last,
// so that its turns have all before in common.
const (
	AskedTools = iota
	askedBefore
	askedLast
	askedParts
)

// PromptIDs is the array of the token ids that the prompt consists of, JSON; nil if it is more than one prompt, or text.
func (b *Body) PromptIDs() []byte {
	if b.promptIDs == 0 || b.promptBytes > 0 || b.Prompts != 1 {
		return nil
	}
	return b.Asked[askedLast].Of(b.Raw)
}

// Unbounded reports whether the body asks for an answer of tokens without a limit, so that nothing can be expected of it.
func (b *Body) Unbounded() bool {
	return b.MaxTokens < 0 && b.Shape != ShapeCompletions && b.Shape != ShapePass
}

// Turns is where the turns of a chat end, in bytes from the beginning of the last part of Asked.
type Turns struct {
	Asked    int // the last turn before the model's latest message; 0 if it has none
	Answered int // the model's latest message; 0 if it has none
	End      int // the last turn: the prompt of the next request begins with all up to here
}

// Turns returns where the prompt's turns end. Of a prompt that is no chat only the end is known.
func (b *Body) Turns() Turns {
	all := b.Asked[askedLast].Of(b.Raw)
	t := Turns{End: len(all)}
	if b.Shape != ShapeChat && b.Shape != ShapeMessages {
		return t
	}
	s, n, last := jsonscan.Scanner{Bytes: all, MaxDepth: maxBodyDepth}, 0, 0
	for ok := s.Peek() == '[' && s.Array(1); ok && s.Element(&n); {
		models := false
		if s.Peek() != '{' {
			return Turns{End: len(all)}
		}
		m, in := s.Object(2)
		for in && s.Member(&m) {
			isRole, at := string(m.Key) == "role", s.Pos
			in = s.Value(2)
			models = models || in && isRole && string(all[at:s.Pos]) == `"assistant"`
		}
		if ok = s.Why == ""; models {
			t.Asked, t.Answered = last, s.Pos
		}
		last = s.Pos
	}
	if s.Why != "" || last == 0 {
		return Turns{End: len(all)}
	}
	t.End = last
	return t
}
