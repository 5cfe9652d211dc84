// Package gather builds a request from bytes of its own and bytes that it only borrows: long stretches are not copied, but left out
// and written from where they lie. The lender must keep them unchanged until the request is written.
package gather

import (
	"io"
	"net"
)

// MinGap is how long a stretch must be to be left out: a shorter one is cheaper to copy than to have a place of its own in a
// write.
const MinGap = 4 << 10

// Gaps are the stretches that are left out of what was copied, in their order.
type Gaps []gap

type gap struct {
	at  int // in what was copied
	raw []byte
}

// Append appends raw, or leaves a gap for it. Without gaps everything is appended.
func (g *Gaps) Append(dst, raw []byte) []byte {
	if g == nil || len(raw) < MinGap {
		return append(dst, raw...)
	}
	*g = append(*g, gap{len(dst), raw})
	return dst
}

// Size is how many bytes are missing.
func (g Gaps) Size() (n int) {
	for _, p := range g {
		n += len(p.raw)
	}
	return n
}

// Join appends what there is to write of body, in its order.
func (g Gaps) Join(dst [][]byte, body []byte) [][]byte {
	from := 0
	for _, p := range g {
		dst = append(dst, body[from:p.at], p.raw)
		from = p.at
	}
	return append(dst, body[from:])
}

// Writer is room for a request that is written from several places at once.
type Writer struct {
	all  [][]byte
	left net.Buffers // those of them that are not yet written
}

// Write writes the head and the body, and returns how many bytes were written.
func (p *Writer) Write(to io.Writer, head, body []byte, g Gaps) (int64, error) {
	p.all = g.Join(append(p.all[:0], head), body)
	p.left = p.all
	defer clear(p.all)
	return p.left.WriteTo(to)
}
