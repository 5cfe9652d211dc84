package edge

import (
	"bytes"

	"pdrouter/internal/httpsyntax"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// requestHead is a request's head as it was sent.
type requestHead struct {
	Proto string // as it stands in the request line
	URI   []byte // the request target as sent
	Raw   []byte // the header block as sent, from after the request line to the blank line; empty if there is no field
}

// bodyFraming is what a request's head says of where its body ends, and of what follows it.
type bodyFraming struct {
	length  int64 // bytes of the body; -1 if it is chunked
	expects bool  // the client waits for 100 Continue before it sends the body
	closes  bool  // the client sends no further request on the connection
}

const (
	HeadBytes  = 16 << 10 // the most bytes of a request's head
	headFields = 100      // the most fields of it
)

// checkFraming refuses a head over which two HTTP parsers could disagree: where the body ends, which host is meant,
// where a field ends. It returns what the head says of the body. The error asks for the connection to be closed, because nothing that
// follows on it can be trusted. It runs before anything else looks at the request.
func checkFraming(h requestHead) (f bodyFraming, _ *openai.Error) {
	if len(h.Raw)+len(h.URI) > HeadBytes {
		return f, openai.NewError(reason.HeadTooLarge, "The request's head is larger than %d bytes.", HeadBytes)
	}
	var length, coding, host bool
	var hostValue []byte
	rest := h.Raw
	for n := 0; len(h.Raw) > 0; n++ {
		line, next, ok := httpsyntax.CutLine(rest)
		if !ok {
			return f, openai.ErrFraming("A header line does not end in CRLF.")
		}
		rest = next
		if len(line) == 0 {
			break
		}
		if n == headFields {
			return f, openai.NewError(reason.HeadTooLarge, "The request has more than %d header fields.", headFields)
		}
		name, value, e := cutField(line)
		if e != nil {
			return f, e
		}
		switch {
		case httpsyntax.IsName(name, "content-length"):
			if length {
				return f, openai.ErrFraming("The request has two Content-Length fields.")
			}
			if f.length, ok = httpsyntax.ContentLength(value); !ok {
				return f, openai.ErrFraming("The Content-Length is not a number.")
			}
			length = true
		case httpsyntax.IsName(name, "transfer-encoding"):
			if coding || !httpsyntax.IsName(value, "chunked") {
				return f, openai.ErrFraming("The Transfer-Encoding is not exactly chunked.")
			}
			coding, f.length = true, -1
		case httpsyntax.IsName(name, "connection"):
			f.closes = f.closes || httpsyntax.ContainsToken(value, "close")
		case httpsyntax.IsName(name, "expect"):
			f.expects = httpsyntax.IsName(value, "100-continue") && h.Proto == "HTTP/1.1"
		case httpsyntax.IsName(name, "host"):
			if host {
				return f, openai.NewError(reason.BadHost, "The request has two Host fields.")
			}
			host, hostValue = true, value
		}
	}
	switch {
	case len(rest) != 0:
		return f, openai.ErrFraming("There are bytes behind the head.")
	case length && coding:
		return f, openai.ErrFraming("The request has both Content-Length and Transfer-Encoding.")
	case h.Proto != "HTTP/1.1" && h.Proto != "HTTP/1.0":
		return f, openai.ErrFraming("The HTTP version is not 1.0 or 1.1.")
	case coding && h.Proto != "HTTP/1.1":
		return f, openai.ErrFraming("Transfer-Encoding needs HTTP/1.1.")
	}
	return f, checkHost(h, host, hostValue)
}

// cutField parts a header line, without its end, into the field's name and value.
func cutField(line []byte) (name, value []byte, _ *openai.Error) {
	name, value, found := bytes.Cut(line, []byte{':'})
	value = bytes.Trim(value, " \t")
	if !found || !httpsyntax.IsToken(name) {
		return nil, nil, openai.ErrFraming("A header field's name is not valid.")
	}
	if !httpsyntax.IsFieldValue(value) {
		return nil, nil, openai.ErrFraming("A header field's value has control characters.")
	}
	return name, value, nil
}

// checkHost wants one host: one Host field (HTTP/1.0 may have none), and no other one in the target.
func checkHost(h requestHead, given bool, value []byte) *openai.Error {
	if !given && h.Proto != "HTTP/1.0" {
		return openai.NewError(reason.BadHost, "The request has no Host field.")
	}
	for _, c := range value {
		if c <= ' ' || c >= 0x7f || bytes.IndexByte([]byte(`"#/<>?@\^{|},`+"`"), c) >= 0 {
			return openai.NewError(reason.BadHost, "The Host field is not a host.")
		}
	}
	if len(h.URI) > 0 && h.URI[0] == '/' || string(h.URI) == "*" {
		return nil
	}
	scheme, target, ok := bytes.Cut(h.URI, []byte("://"))
	if !ok || !httpsyntax.IsName(scheme, "http") && !httpsyntax.IsName(scheme, "https") {
		return openai.ErrFraming("The request target is not valid.")
	}
	if i := bytes.IndexAny(target, "/?#"); i >= 0 {
		target = target[:i]
	}
	if !given || !bytes.EqualFold(target, value) {
		return openai.NewError(reason.BadHost, "The request target's host is not the Host field's.")
	}
	return nil
}

// headEnd finds the end of a request's head.
type headEnd struct {
	length int  // of the line so far
	cr     bool // its last byte is a carriage return
	begun  bool // there was a line
	bareLF bool // a line ended without a carriage return
}

// find returns how many bytes of b belong to the head, -1 if it goes on. Empty lines before the head are part of it.
func (h *headEnd) find(b []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			if rest := len(b) - from; rest > 0 {
				h.length, h.cr = h.length+rest, b[len(b)-1] == '\r'
			}
			return -1
		}
		if i > 0 {
			h.cr = b[from+i-1] == '\r'
		}
		length := h.length + i
		if h.cr {
			length--
		} else {
			h.bareLF = true
		}
		h.length, h.cr = 0, false
		from += i + 1
		if length == 0 && h.begun {
			h.begun = false
			return from
		}
		h.begun = h.begun || length > 0
	}
}
