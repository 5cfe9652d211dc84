package openai

import (
	"math"
	"strconv"

	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// fanSpans are the values of a body that differ between the bodies of its choices, or say that there can be none.
type fanSpans struct{ n, prompt, seed, temperature jsonscan.Span }

// ServesChoicesApart reports whether all that keeps the body from being split is that it asks for several choices, and each of them can
// be asked for by a body of its own that has an engine do just what it would do for the choice.
//
// With greedy also those whose choices would all be one text: some engines take that, others refuse it in ways of their own.
func (b *Body) ServesChoicesApart(greedy bool) bool {
	if b.Unsplittable != UnsplitN && b.Unsplittable != unsplitPrompts {
		return false
	}
	if b.Shape != ShapeCompletions && b.Shape != ShapeChat || b.N == 1 {
		return b.Shape == ShapeCompletions
	}
	if greedy {
		_, ok := b.seedOf(b.N - 1)
		return ok
	}
	if t, err := strconv.ParseFloat(string(b.fan.temperature.Of(b.Raw)), 64); err == nil && t < greedyBelow {
		return false // several choices of one and the same text: engines have rules of their own for that
	}
	_, ok := b.seedOf(b.N - 1)
	return ok
}

// greedyBelow is the temperature below which engines take the likeliest token.
const greedyBelow = 1e-5

// noSeed is the seed that stands for none.
const noSeed = -1

// seedOf returns the seed of the choice j of a prompt as JSON, nil if it is the body's own value or none. It reports false
// if no body can ask for that: the seed is no whole number of 64 bits, or would become one that means something else.
func (b *Body) seedOf(j int) ([]byte, bool) {
	text := b.fan.seed.Of(b.Raw)
	if !Given(text) {
		return nil, true
	}
	seed, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil, seed > math.MaxInt64-int64(j):
		return nil, false
	case j == 0 || seed == noSeed:
		return nil, true
	case seed < noSeed && seed+int64(j) >= noSeed: // one of the choices before would have none
		return nil, false
	}
	return strconv.AppendInt(nil, seed+int64(j), 10), true
}

// Choices is how many choices the body asks for.
func (b *Body) Choices() int { return b.N * b.Prompts }

// OneSequence reports whether the engine makes its tokens one after another: for one prompt it makes one choice, and none to choose it from.
func (b *Body) OneSequence() bool { return b.Choices() == 1 && b.Unsplittable != UnsplitBestOf }

// ChoiceBodies returns the bodies of the choices, prompt by prompt: Raw with n 1, one prompt and the choice's seed, every other
// byte as it is. They share Raw. It returns nil if the body is not what ServesChoicesApart says of it.
func (b *Body) ChoiceBodies() []*Body {
	prompts := []jsonscan.Span{b.fan.prompt}
	if b.Prompts > 1 {
		if prompts = elements(b.Raw, b.fan.prompt.From); len(prompts) != b.Prompts {
			return nil
		}
	}
	out := make([]*Body, 0, b.Choices())
	for _, prompt := range prompts {
		one := *b
		one.N, one.Prompts, one.Unsplittable = 1, 1, ""
		if b.Prompts > 1 {
			one.readOne(prompt)
		}
		for j := range b.N {
			seed, ok := b.seedOf(j)
			if !ok {
				return nil
			}
			edits := make([]jsonscan.Edit, 0, 3)
			if b.fan.n.To > 0 {
				edits = append(edits, jsonscan.Edit{At: b.fan.n, With: []byte("1")})
			}
			if b.Prompts > 1 {
				edits = append(edits, jsonscan.Edit{At: b.fan.prompt, With: prompt.Of(b.Raw)})
			}
			if seed != nil {
				edits = append(edits, jsonscan.Edit{At: b.fan.seed, With: seed})
			}
			choice := one
			choice.edits = jsonscan.Sorted(edits)
			out = append(out, &choice)
		}
	}
	return out
}

// readOne reads one of several prompts as the only one.
func (b *Body) readOne(prompt jsonscan.Span) {
	b.promptBytes, b.promptIDs, b.fan.prompt, b.Asked[askedLast] = 0, 0, prompt, prompt
	p := bodyParser{body: b, depth: 1}
	p.Bytes, p.Pos, p.MaxDepth = b.Raw, prompt.From, maxBodyDepth
	p.prompt()
}

// elements returns where the elements of the array at from lie.
func elements(b []byte, from int) []jsonscan.Span {
	s := jsonscan.Scanner{Bytes: b, Pos: from, MaxDepth: answer.MaxAnswerDepth}
	var out []jsonscan.Span
	n := 0
	for ok := s.Array(1); ok && s.Element(&n); {
		at := s.Pos
		if ok = s.Value(1); ok {
			out = append(out, jsonscan.Span{From: at, To: s.Pos})
		}
	}
	if s.Why != "" {
		return nil
	}
	return out
}
