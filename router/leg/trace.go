package leg

import (
	"strings"

	"pdrouter/internal/httpsyntax"
	"pdrouter/router/upstream"
)

// trace is a client's trace context (W3C Trace Context), as it is sent to engines: the parent, then a line feed and the state if there is
// one. "" is none.
type trace string

// fields appends the header fields for an engine.
func (t trace) fields(dst []upstream.Field) []upstream.Field {
	if t == "" {
		return dst
	}
	parent, state, _ := strings.Cut(string(t), "\n")
	dst = append(dst, upstream.Field{Name: "Traceparent", Value: parent})
	if state != "" {
		dst = append(dst, upstream.Field{Name: "Tracestate", Value: state})
	}
	return dst
}

// maxTraceState is the limit in bytes of a trace state. A longer one is dropped, not cut.
const maxTraceState = 512

// ParseTrace reads the fields traceparent and tracestate. Several states form one list. A parent that is malformed or sent twice is ignored,
// and so is a state without a parent.
func ParseTrace(parents, states [][]byte) trace {
	if len(parents) != 1 || !isTraceParent(parents[0]) {
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
	t := trace(parents[0])
	if all.Len() > 0 && all.Len() <= maxTraceState && httpsyntax.IsFieldValue([]byte(all.String())) {
		t += trace("\n" + all.String())
	}
	return t
}

// isTraceParent reports whether b is "00-<32 hex>-<16 hex>-<2 hex>" in lower case with ids that are not all zero. A later version may
// have more after that.
func isTraceParent(b []byte) bool {
	const size = len("00-") + 32 + len("-") + 16 + len("-00")
	if len(b) < size || len(b) > 256 || string(b[:2]) == "ff" || len(b) > size && (string(b[:2]) == "00" || b[size] != '-') {
		return false
	}
	zero := [4]bool{true, true, true, true} // of each part
	part := 0
	for i, c := range b[:size] {
		switch {
		case i == 2 || i == 35 || i == 52:
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
