package router

// forwarded is what of a client's head the engines are given. It is never logged. A nil *forwarded is nothing.
type forwarded struct {
	trace         trace
	authorization string // "" if the client shows none
	judged        bool   // the engines say whether the client's credentials are good
}

// fields appends the header fields for an engine.
func (f *forwarded) fields(dst []field) []field {
	if f == nil {
		return dst
	}
	if f.authorization != "" {
		dst = append(dst, field{"Authorization", f.authorization})
	}
	return f.trace.fields(dst)
}

// String hides the credentials.
func (f *forwarded) String() string { return "(forwarded)" }
