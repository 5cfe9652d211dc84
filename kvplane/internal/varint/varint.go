// Package varint decodes the fields of messages: numbers of variable length, and texts after their length. It checks the bounds of every
// field, and does not know what a field means. Package wire and transport tcp use it.
package varint

import "encoding/binary"

// Reader takes fields from the front of some bytes and remembers whether one did not fit. From then on its answers mean
// nothing: ask Failed at the end. Fields share the memory of the bytes.
type Reader struct {
	b   []byte
	bad bool
}

// Read returns a Reader of b.
func Read(b []byte) Reader { return Reader{b: b} }

// AppendText appends the length of a text and the text.
func AppendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// Byte takes one byte.
func (r *Reader) Byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// Uvarint takes a number of at most limit.
func (r *Reader) Uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Bytes takes n bytes.
func (r *Reader) Bytes(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// Text takes a text of at most limit bytes and the length before it.
func (r *Reader) Text(limit uint64) string {
	return string(r.Bytes(int(r.Uvarint(limit))))
}

// Rest is what has not been taken yet.
func (r *Reader) Rest() []byte { return r.b }

// Fail notes that something did not fit.
func (r *Reader) Fail() { r.bad = true }

// Failed says whether something did not fit.
func (r *Reader) Failed() bool { return r.bad }
