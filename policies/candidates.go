package policies

import "sync"

// Candidates are the engines of one role among which a choice is made, counted from 0. Filters, scorers and pickers only read them.
type Candidates struct {
	Request *Request
	Draw    Draw
	// Partner is the prefill engine that was chosen before, where these are decode engines for it; else nil.
	Partner *Engine

	// troubled says of each engine of the role whether hand-offs to it from Partner go wrong; nil: none does.
	troubled func(i int) bool

	engines []Engine  // all of the role
	at      []int     // which of them are candidates
	scores  []float64 // of each candidate
	term    []float64 // of each candidate, by one scorer
	keep    []bool    // scratch of filters
	request Request
	told    *explainer // nil: the choice is not explained
}

// Len is how many there are.
func (c *Candidates) Len() int { return len(c.at) }

// Engine returns candidate i.
func (c *Candidates) Engine(i int) *Engine { return &c.engines[c.at[i]] }

// rooms keeps Candidates for the next choice, so that a choice allocates nothing.
var rooms = sync.Pool{New: func() any { return new(Candidates) }}

// candidatesOf begins a choice among engines that pass may. It must be ended by end.
func candidatesOf(q *Request, d Draw, engines []Engine, told *explainer, may func(i int) bool) *Candidates {
	c := rooms.Get().(*Candidates)
	c.told = told
	c.request, c.Draw, c.engines, c.at = *q, d, engines, c.at[:0]
	c.Request = &c.request
	for i := range engines {
		if engines[i].Usable && may(i) {
			c.at = append(c.at, i)
		}
	}
	told.candidates(c.at)
	return c
}

func (c *Candidates) end() {
	c.engines, c.Partner, c.troubled, c.told, c.request = nil, nil, nil, nil, Request{}
	rooms.Put(c)
}

// retain leaves only the candidates that pass keep. why says what became of the others.
func (c *Candidates) retain(keep []bool, why string) {
	c.told.leave(c.at, keep, why)
	kept := c.at[:0]
	for i, at := range c.at {
		if keep[i] {
			kept = append(kept, at)
		}
	}
	c.at = kept
}

// drop leaves one engine out.
func (c *Candidates) drop(engine int) {
	kept := c.at[:0]
	for _, at := range c.at {
		if at != engine {
			kept = append(kept, at)
		}
	}
	c.at = kept
}

// room returns a slice of n elements, in place of s if that is large enough. What it holds is undefined.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
