package leg

import (
	"strings"

	"pdrouter/router/trace"
	"pdrouter/router/upstream"
)

// Forwarded is the part of a client's header that engines receive. It is never logged. A nil *Forwarded is empty.
type Forwarded struct {
	Context       trace.Context // in which legs work that have no span of their own
	Trace         *trace.Trace  // the request's; nil if it is not sampled
	Authorization string        // "" if the client sent none
	Judged        bool          // the engines check the client's credentials
}

// fields appends the header fields of a leg.
func (f *Forwarded) fields(dst []upstream.Field, l *Leg) []upstream.Field {
	if f == nil {
		return dst
	}
	if f.Authorization != "" {
		dst = append(dst, upstream.Field{Name: "Authorization", Value: f.Authorization})
	}
	in := f.Context
	if f.Trace != nil {
		in = f.Trace.Context(l)
	}
	if in == "" {
		return dst
	}
	parent, state := in.Fields()
	dst = append(dst, upstream.Field{Name: "Traceparent", Value: parent})
	if state != "" {
		dst = append(dst, upstream.Field{Name: "Tracestate", Value: state})
	}
	return dst
}

// Traced is the trace of the request; nil if it is not sampled.
func (f *Forwarded) Traced() *trace.Trace {
	if f == nil {
		return nil
	}
	return f.Trace
}

// credential is the client's credential without its scheme; "" if the engines receive none.
func (f *Forwarded) credential() string {
	if f == nil {
		return ""
	}
	if _, bare, ok := strings.Cut(f.Authorization, " "); ok {
		return strings.TrimSpace(bare)
	}
	return f.Authorization
}

// String hides the credentials.
func (f *Forwarded) String() string { return "(forwarded)" }
