package leg

import (
	"strings"

	"pdrouter/router/upstream"
)

// Forwarded is the part of a client's header that engines receive. It is never logged. A nil *Forwarded is empty.
type Forwarded struct {
	Trace         trace
	Authorization string // "" if the client sent none
	Judged        bool   // the engines check the client's credentials
}

// fields appends the header fields for an engine.
func (f *Forwarded) fields(dst []upstream.Field) []upstream.Field {
	if f == nil {
		return dst
	}
	if f.Authorization != "" {
		dst = append(dst, upstream.Field{Name: "Authorization", Value: f.Authorization})
	}
	return f.Trace.fields(dst)
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
