package leg

import (
	"sync"

	"pdrouter/internal/gather"
	"pdrouter/router/openai"
	"pdrouter/router/upstream"
)

// Request is one request to an engine while it is written: its header fields, and the bytes of its body. Requests are used
// again: release one when it has been sent and may not be sent once more.
type Request struct {
	upstream.Request
	pool   *sync.Pool // where it goes back to
	fields [8]upstream.Field
	Params []byte
	body   []byte
	of     *openai.Body // which it retains; nil if it retains none
}

// keptBody is how many bytes of a body's buffer are kept for the next one.
const keptBody = 64 << 10

// Requests are requests that may be used again. The zero value is ready.
type Requests struct{ pool sync.Pool }

// New begins a request to the engine of a leg.
func (p *Requests) New(l *Leg, path, request string, f *Forwarded, stream bool) *Request {
	m, ok := p.pool.Get().(*Request)
	if !ok {
		m = &Request{pool: &p.pool}
	}
	m.Path = path
	m.Header = l.Header(m.fields[:0], request, f, stream)
	return m
}

// Write writes the leg's body. Where b is shared its long stretches are the client's own bytes: b must be retained until the request is sent.
func (m *Request) Write(b *openai.Body, l openai.Variant, request string, kv []byte) {
	var g *gather.Gaps
	if b.Shared() {
		g = &m.Gaps
	}
	m.body = b.AppendVariant(m.body[:0], g, l, request, kv)
	m.Body = m.body
}

// WriteBy has f append the body to dst, and long stretches of what others hold to gaps.
func (m *Request) WriteBy(f func(dst []byte, gaps *gather.Gaps) []byte) {
	m.body = f(m.body[:0], &m.Gaps)
	m.Body = m.body
}

// Retain retains the body until the request is released.
func (m *Request) Retain(b *openai.Body) *Request {
	b.Retain()
	m.of = b
	return m
}

// Release gives the request back. Neither it nor its body may be used any more.
func (m *Request) Release() {
	m.of.Release()
	m.of = nil
	clear(m.Gaps)
	gaps := m.Gaps[:0]
	if cap(m.body) > keptBody {
		m.body = nil
	}
	m.Request, m.fields = upstream.Request{Gaps: gaps}, [8]upstream.Field{} // the buffers are kept, not what strings they named
	m.pool.Put(m)
}
