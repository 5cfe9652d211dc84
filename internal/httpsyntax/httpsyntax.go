// Package httpsyntax is the grammar of HTTP/1.1 messages that both sides of the gateway share: lines, tokens, header fields and
// lengths. It reads strictly: what two parsers could understand differently is refused. It knows no message as a whole and holds
// no state. The gateway's server, its multipart forms and its HTTP client call it.
package httpsyntax

import "bytes"

// CutLine cuts the first line off. The line must end in CRLF and must not contain another LF.
func CutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 1 || b[i-1] != '\r' {
		return nil, b, false
	}
	return b[:i-1], b[i+1:], true
}

// ContentLength reads the value of a Content-Length field: 1 to 18 digits and nothing else.
func ContentLength(v []byte) (int64, bool) {
	n := int64(0)
	for _, c := range v {
		if c-'0' > 9 {
			return -1, false
		}
		n = n*10 + int64(c-'0')
	}
	if len(v) == 0 || len(v) > 18 {
		return -1, false
	}
	return n, true
}

// HexDigit returns the value of one hexadecimal digit of either case.
func HexDigit(c byte) (byte, bool) {
	switch lower := c | 0x20; {
	case c-'0' <= 9:
		return c - '0', true
	case lower-'a' <= 5:
		return lower - 'a' + 10, true
	}
	return 0, false
}

// IsName reports whether b is the given name or token, which is in lower case. The case of b is ignored.
func IsName(b []byte, lower string) bool {
	return len(b) == len(lower) && bytes.EqualFold(b, []byte(lower))
}

// ContainsToken reports whether a comma-separated list contains a token, which is in lower case. The case of the list is ignored.
func ContainsToken(list []byte, lower string) bool {
	for len(list) > 0 {
		token, rest, _ := bytes.Cut(list, []byte{','})
		if IsName(bytes.Trim(token, " \t"), lower) {
			return true
		}
		list = rest
	}
	return false
}

// IsToken reports whether b is a token of RFC 9110. An empty b is not.
func IsToken(b []byte) bool {
	for _, c := range b {
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9':
		case bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0:
		default:
			return false
		}
	}
	return len(b) > 0
}

// IsFieldValue reports whether b has no control characters except tabs.
func IsFieldValue(b []byte) bool {
	for _, c := range b {
		if c < 0x20 && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// IsAlphanumeric reports whether c is an ASCII letter or digit.
func IsAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
