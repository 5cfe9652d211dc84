package leg

import (
	"sync"

	"pdrouter/internal/gather"
	"pdrouter/router/openai"
	"pdrouter/router/upstream"
)

// Request is one request to an engine while it is written: its header fields and the bytes of its body. Requests are pooled. Release one
// when it was sent and will not be sent again.
type Request struct {
	upstream.Request
	pool    *sync.Pool // where it goes back to
	fields  [8]upstream.Field
	Members []byte // a buffer for the members that the body gets
	body    []byte
	of      *openai.Body // the retained body; nil if none is
}

// keptBody is how many bytes of a body's buffer are kept for the next one.
const keptBody = 64 << 10

// Requests is a pool of requests. The zero value is ready.
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

// Write writes the leg's body, with members. Long parts may refer to members and, if b is shared, to the client's own bytes: retain b until
// the request is sent.
func (m *Request) Write(b *openai.Body, l openai.Variant, request string, members []byte) {
	var g *gather.Gaps
	if b.Shared() || len(members) >= openai.LentBody {
		g = &m.Gaps
	}
	m.body = b.AppendVariant(m.body[:0], g, l, request, members)
	m.Body = m.body
}

// WriteBy writes the body by f, which appends to dst. f may add long parts to gaps instead, which refer to bytes held elsewhere.
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

// Release returns the request to its pool. Do not use it or its body afterwards.
func (m *Request) Release() {
	m.of.Release()
	m.of = nil
	clear(m.Gaps)
	gaps := m.Gaps[:0]
	if cap(m.body) > keptBody {
		m.body = nil
	}
	if cap(m.Members) > keptBody {
		m.Members = nil
	}
	m.Request, m.fields = upstream.Request{Gaps: gaps}, [8]upstream.Field{} // keep the buffers, drop the strings
	m.pool.Put(m)
}
