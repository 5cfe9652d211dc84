package router

import (
	"math"
	"strconv"

	"pdrouter/router/openai/jsonscan"
)

// span is where a value lies in a body; the zero span is no value.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// fanSpans are the values of a body that differ between the bodies of its choices, or say that there can be none.
type fanSpans struct{ n, prompt, seed, temperature span }

// fans reports whether all that keeps the body from being split is that it asks for several choices, and each of them can
// be asked for by a body of its own that has an engine do just what it would do for the choice.
//
// With greedy also those whose choices would all be one text: some engines take that, others refuse it in ways of their own.
func (b *body) fans(greedy bool) bool {
	if b.unsplittable != unsplitN && b.unsplittable != unsplitPrompts {
		return false
	}
	if b.shape != shapeCompletions && b.shape != shapeChat || b.n == 1 {
		return b.shape == shapeCompletions
	}
	if greedy {
		_, ok := b.seedOf(b.n - 1)
		return ok
	}
	if t, err := strconv.ParseFloat(string(b.fan.temperature.of(b.raw)), 64); err == nil && t < greedyBelow {
		return false // several choices of one and the same text: engines have rules of their own for that
	}
	_, ok := b.seedOf(b.n - 1)
	return ok
}

// greedyBelow is the temperature below which engines take the likeliest token.
const greedyBelow = 1e-5

// noSeed is the seed that stands for none.
const noSeed = -1

// seedOf returns the seed of the choice j of a prompt as JSON, nil if it is the body's own value or none. It reports false
// if no body can ask for that: the seed is no whole number of 64 bits, or would become one that means something else.
func (b *body) seedOf(j int) ([]byte, bool) {
	text := b.fan.seed.of(b.raw)
	if len(text) == 0 || string(text) == "null" {
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

// choices is how many choices the body asks for.
func (b *body) choices() int { return b.n * b.prompts }

// fanBodies returns the bodies of the choices, prompt by prompt: raw with n 1, one prompt and the choice's seed, every other
// byte as it is. They share raw. It returns nil if the body is not what fans says of it.
func (b *body) fanBodies() []*body {
	prompts := []span{b.fan.prompt}
	if b.prompts > 1 {
		if prompts = elements(b.raw, b.fan.prompt.from); len(prompts) != b.prompts {
			return nil
		}
	}
	out := make([]*body, 0, b.choices())
	for _, prompt := range prompts {
		one := *b
		one.n, one.prompts, one.unsplittable = 1, 1, ""
		if b.prompts > 1 {
			one.readOne(prompt)
		}
		for j := range b.n {
			seed, ok := b.seedOf(j)
			if !ok {
				return nil
			}
			edits := make([]edit, 0, 3)
			if b.fan.n.to > 0 {
				edits = append(edits, edit{b.fan.n, []byte("1")})
			}
			if b.prompts > 1 {
				edits = append(edits, edit{b.fan.prompt, prompt.of(b.raw)})
			}
			if seed != nil {
				edits = append(edits, edit{b.fan.seed, seed})
			}
			choice := one
			choice.edits = sorted(edits)
			out = append(out, &choice)
		}
	}
	return out
}

// readOne reads one of several prompts as the only one.
func (b *body) readOne(prompt span) {
	b.promptBytes, b.promptIDs, b.fan.prompt, b.asked[askedLast] = 0, 0, prompt, prompt
	p := bodyParser{body: b, depth: 1}
	p.Bytes, p.Pos, p.MaxDepth = b.raw, prompt.from, maxBodyDepth
	p.prompt()
}

// elements returns where the elements of the array at from lie.
func elements(b []byte, from int) []span {
	s := jsonscan.Scanner{Bytes: b, Pos: from, MaxDepth: maxAnswerDepth}
	var out []span
	n := 0
	for ok := s.Array(1); ok && s.Element(&n); {
		at := s.Pos
		if ok = s.Value(1); ok {
			out = append(out, span{at, s.Pos})
		}
	}
	if s.Why != "" {
		return nil
	}
	return out
}

// edit replaces the bytes of a span.
type edit struct {
	at   span
	with []byte
}

// sorted sorts the edits by where they are, and returns them.
func sorted(edits []edit) []edit {
	for i := range edits { // few: by insertion
		for j := i; j > 0 && edits[j].at.from < edits[j-1].at.from; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
	return edits
}

// spliced returns b with the edits, which do not overlap.
func spliced(b []byte, edits []edit) []byte {
	size := len(b)
	for _, e := range sorted(edits) {
		size += len(e.with) - (e.at.to - e.at.from)
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		out = append(append(out, b[from:e.at.from]...), e.with...)
		from = e.at.to
	}
	return append(out, b[from:]...)
}
