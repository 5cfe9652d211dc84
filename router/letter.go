package router

import "sync"

// letter is one request to an engine while it is written: its fields, and the bytes of its body. Letters are used
// again: whoever has one gives it back when the request has left and may not be sent once more.
type letter struct {
	upstreamRequest
	pool   *sync.Pool // where it goes back to
	fields [8]field
	params []byte
	body   []byte
}

// keptLetter is how many bytes of a body's room are kept for the next one.
const keptLetter = 64 << 10

// newLetter begins a request to the engine of a leg.
func (r *Router) newLetter(l *call, path, request string, t trace, stream bool) *letter {
	m, ok := r.letters.Get().(*letter)
	if !ok {
		m = &letter{pool: &r.letters}
	}
	m.Path = path
	m.Header = l.header(m.fields[:0], request, t, stream)
	return m
}

// free gives the letter back. Neither it nor its body may be used any more.
func (m *letter) free() {
	if cap(m.body) > keptLetter {
		m.body = nil
	}
	m.upstreamRequest, m.fields = upstreamRequest{}, [8]field{} // the bodies' room is kept, not what strings they named
	m.pool.Put(m)
}
