package router

import (
	"sync"

	"pdrouter/internal/gather"
	"pdrouter/router/openai"
	"pdrouter/router/upstream"
)

// letter is one request to an engine while it is written: its fields, and the bytes of its body. Letters are used
// again: whoever has one gives it back when the request has left and may not be sent once more.
type letter struct {
	upstream.Request
	pool   *sync.Pool // where it goes back to
	fields [8]upstream.Field
	params []byte
	body   []byte
	of     *openai.Body // which it holds; nil if it holds none
}

// keptLetter is how many bytes of a body's room are kept for the next one.
const keptLetter = 64 << 10

// letters are requests that may be used again. The zero value is ready.
type letters struct{ pool sync.Pool }

// begin begins a request to the engine of a leg.
func (p *letters) begin(l *call, path, request string, f *forwarded, stream bool) *letter {
	m, ok := p.pool.Get().(*letter)
	if !ok {
		m = &letter{pool: &p.pool}
	}
	m.Path = path
	m.Header = l.header(m.fields[:0], request, f, stream)
	return m
}

// write writes the leg's body. Where b is shared its long stretches are the client's own bytes: somebody must hold b until the letter
// has left.
func (m *letter) write(b *openai.Body, l openai.Variant, request string, kv []byte) {
	var g *gather.Gaps
	if b.Shared() {
		g = &m.Gaps
	}
	m.body = b.AppendVariant(m.body[:0], g, l, request, kv)
	m.Body = m.body
}

// writeBy has f append the body to dst, and long stretches of what others hold to gaps.
func (m *letter) writeBy(f func(dst []byte, gaps *gather.Gaps) []byte) {
	m.body = f(m.body[:0], &m.Gaps)
	m.Body = m.body
}

// hold has the letter hold the body until it is free.
func (m *letter) hold(b *openai.Body) *letter {
	b.Retain()
	m.of = b
	return m
}

// free gives the letter back. Neither it nor its body may be used any more.
func (m *letter) free() {
	m.of.Release()
	m.of = nil
	clear(m.Gaps)
	room := m.Gaps[:0]
	if cap(m.body) > keptLetter {
		m.body = nil
	}
	m.Request, m.fields = upstream.Request{Gaps: room}, [8]upstream.Field{} // the bodies' room is kept, not what strings they named
	m.pool.Put(m)
}
