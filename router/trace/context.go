package trace

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"

	"pdrouter/internal/httpsyntax"
)

// ID is the id of a trace. A request's spans have it, those of its client and of its engines too.
type ID [16]byte

// MarshalText returns the id as 32 hexadecimal digits.
func (id ID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("trace: %d digits; want %d", len(text), hex.EncodedLen(len(id)))
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// String returns the id as 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// SpanID is the id of one span. It is zero for none.
type SpanID [8]byte

// Context is a trace context (W3C Trace Context), as it is sent to engines: the field traceparent, then a line feed and the field
// tracestate if there is one. "" is none.
type Context string

// Fields returns the values of traceparent and tracestate, "" for those that are not sent.
func (c Context) Fields() (parent, state string) {
	parent, state, _ = strings.Cut(string(c), "\n")
	return parent, state
}

// MaxState is the limit in bytes of a trace state. A longer one is dropped, not cut.
const MaxState = 512

// Parse reads a client's fields traceparent and tracestate. Several states form one list. A parent that is malformed or sent twice is
// ignored, and so is a state without a parent.
func Parse(parents, states [][]byte) Context {
	if len(parents) != 1 || !isParent(parents[0]) {
		return ""
	}
	var all strings.Builder
	for _, s := range states {
		if len(s) == 0 {
			continue
		}
		if all.Len() > 0 {
			all.WriteByte(',')
		}
		all.Write(s)
	}
	c := Context(parents[0])
	if all.Len() > 0 && all.Len() <= MaxState && httpsyntax.IsFieldValue([]byte(all.String())) {
		c += Context("\n" + all.String())
	}
	return c
}

// Where the parts of a traceparent are: "00-<32 hex>-<16 hex>-<2 hex>".
const (
	idAt, idEnd     = 3, 3 + 32
	spanAt, spanEnd = idEnd + 1, idEnd + 1 + 16
	flagsAt, size   = spanEnd + 1, spanEnd + 1 + 2
)

// isParent reports whether b is a traceparent in lower case with ids that are not all zero. A later version may have more after that.
func isParent(b []byte) bool {
	if len(b) < size || len(b) > 256 || string(b[:2]) == "ff" || len(b) > size && (string(b[:2]) == "00" || b[size] != '-') {
		return false
	}
	zero := [4]bool{true, true, true, true} // of each part
	part := 0
	for i, c := range b[:size] {
		switch {
		case i == idAt-1 || i == spanAt-1 || i == flagsAt-1:
			if c != '-' {
				return false
			}
			part++
		case '0' <= c && c <= '9' || 'a' <= c && c <= 'f':
			zero[part] = zero[part] && c == '0'
		default:
			return false
		}
	}
	for _, c := range b[size:] {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return !zero[1] && !zero[2]
}

// read returns what a context that Parse has returned says.
func (c Context) read() (id ID, span SpanID, sampled bool, state string) {
	parent, state := c.Fields()
	_, _ = hex.Decode(id[:], []byte(parent[idAt:idEnd]))
	_, _ = hex.Decode(span[:], []byte(parent[spanAt:spanEnd]))
	var flags [1]byte
	_, _ = hex.Decode(flags[:], []byte(parent[flagsAt:size]))
	return id, span, flags[0]&1 != 0, state
}

// contextOf is the context in which something is done below a span.
func contextOf(id ID, span SpanID, sampled bool, state string) Context {
	b := make([]byte, 0, size+1+MaxState) // on the stack
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, id[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	if sampled {
		b = append(b, "-01"...)
	} else {
		b = append(b, "-00"...)
	}
	if state != "" {
		b = append(append(b, '\n'), state...)
	}
	return Context(b)
}

// newID draws an id, all of whose bits are random.
func newID() (id ID) {
	for id == (ID{}) {
		fill(id[:8])
		fill(id[8:])
	}
	return id
}

func newSpanID() (id SpanID) {
	for id == (SpanID{}) {
		fill(id[:])
	}
	return id
}

// fill draws 8 bytes. The generator is ChaCha8, so that ids tell nothing of each other.
func fill(b []byte) {
	n := rand.Uint64()
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}
