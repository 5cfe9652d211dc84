package embed

import (
	"encoding/binary"
	"errors"
	"strings"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Kind says what a result is. The numbers are the C interface's.
type Kind uint32

// The kinds of results.
const (
	Published Kind = iota + 1
	Broken
	Clear
	_ // the number is not used
	_ // nor this one
	Released
	Failed
	Closed
	Freed
	Cancelled
)

var kindNames = [...]string{
	"", "published", "broken", "clear", "", "", "released", "failed", "closed", "freed", "cancelled",
}

// String names the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Result is one thing that a handle tells. kvplane/capi/pdkv.h describes every field.
type Result struct {
	Kind   Kind
	ID     kvplane.TransferID
	Reason kvplane.Reason
	Rank   *metadata.Rank // nil: nobody's
	K, N   int
	Tokens int
	Bytes  uint64
	Ranges []kvplane.Range // Local and Length
	Blocks [][]int32
	Text   string
}

// resultBytes is the size of a result before what follows it, maxResultText bounds its text.
const (
	resultBytes   = 72
	maxResultText = 1 << 12
)

// Len is how many bytes Append appends.
func (r *Result) Len() int {
	n := resultBytes + 16*len(r.Ranges) + 4*len(r.Blocks) + len(r.text())
	for _, b := range r.Blocks {
		n += 4 * len(b)
	}
	return (n + 7) &^ 7
}

// text begins with the reason's name.
func (r *Result) text() string {
	s := r.Reason.String()
	if s != "" && r.Text != "" {
		s += ": "
	}
	return Cut(s+r.Text, maxResultText)
}

// Cut returns the begin of a text, at most limit bytes of valid UTF-8.
func Cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "") // what was cut in the middle of a character
}

// Append appends the struct pdkv_result and what follows it, in this machine's byte order.
func (r *Result) Append(b []byte) []byte {
	e, text, start := binary.NativeEndian, r.text(), len(b)
	put := func(v uint32) { b = e.AppendUint32(b, v) }
	put(uint32(r.Len()))
	put(uint32(r.Kind))
	b = append(b, r.ID[:]...)
	put(uint32(r.Reason))
	pp, tp := int32(-1), int32(-1)
	if r.Rank != nil {
		pp, tp = int32(r.Rank.PP), int32(r.Rank.TP)
	}
	put(uint32(pp))
	put(uint32(tp))
	put(uint32(r.K))
	put(uint32(r.N))
	put(uint32(r.Tokens))
	put(uint32(len(r.Ranges)))
	put(uint32(len(r.Blocks)))
	b = e.AppendUint64(b, r.Bytes)
	put(uint32(len(text)))
	put(0)
	for _, x := range r.Ranges {
		b = e.AppendUint64(b, x.Local)
		b = e.AppendUint64(b, x.Length)
	}
	for _, g := range r.Blocks {
		put(uint32(len(g)))
	}
	for _, g := range r.Blocks {
		for _, id := range g {
			put(uint32(id))
		}
	}
	b = append(b, text...)
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// results wait to be polled. Whoever owns them guards them.
type results []Result

// poll moves as many as fit whole into buf. used is their bytes; if not even one fits, what it needs.
func (q *results) poll(buf []byte) (n, used int, err error) {
	for n < len(*q) {
		r := &(*q)[n]
		size := r.Len()
		if size > len(buf)-used {
			break
		}
		r.Append(buf[used:used:len(buf)])
		used += size
		n++
	}
	if n == 0 && len(*q) > 0 {
		used = (*q)[0].Len()
		return 0, used, wrong(Room, "embed: a buffer of %d bytes; want %d", len(buf), used)
	}
	if *q = append((*q)[:0:0], (*q)[n:]...); len(*q) == 0 {
		*q = nil
	}
	return n, used, nil
}

// broken is the result of an error that ends a handle's use.
func broken(err error) Result {
	r := Result{Kind: Broken, Text: strings.TrimSpace(err.Error())}
	var newer *metadata.Superseded
	if errors.As(err, &newer) {
		r.Bytes = newer.Known
	}
	return r
}
