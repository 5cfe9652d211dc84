package leg

import (
	"strings"

	"pdrouter/router/upstream"
)

// Forwarded is what of a client's head the engines are given. It is never logged. A nil *forwarded is nothing.
type Forwarded struct {
	Trace         trace
	Authorization string // "" if the client shows none
	Judged        bool   // the engines say whether the client's credentials are good
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

// credential is the client's credential without its scheme; "" if the engines are given none.
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
