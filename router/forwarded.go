package router

import (
	"strings"

	"pdrouter/router/upstream"
)

// forwarded is what of a client's head the engines are given. It is never logged. A nil *forwarded is nothing.
type forwarded struct {
	trace         trace
	authorization string // "" if the client shows none
	judged        bool   // the engines say whether the client's credentials are good
}

// fields appends the header fields for an engine.
func (f *forwarded) fields(dst []upstream.Field) []upstream.Field {
	if f == nil {
		return dst
	}
	if f.authorization != "" {
		dst = append(dst, upstream.Field{Name: "Authorization", Value: f.authorization})
	}
	return f.trace.fields(dst)
}

// credential is the client's credential without its scheme; "" if the engines are given none.
func (f *forwarded) credential() string {
	if f == nil {
		return ""
	}
	if _, bare, ok := strings.Cut(f.authorization, " "); ok {
		return strings.TrimSpace(bare)
	}
	return f.authorization
}

// String hides the credentials.
func (f *forwarded) String() string { return "(forwarded)" }
