package router

import (
	"bytes"
	"fmt"
	"time"
)

// maxFields is how many fields an answer's head may have.
const maxFields = 256

// answerHead is what an answer's head says of its body.
type answerHead struct {
	status  int
	length  int64 // -1 if there is no Content-Length
	chunked bool
	close   bool // the connection ends with this answer
	kind    []byte
	meta    []byte        // what an engine says of an answer of bytes
	rest    time.Duration // Retry-After in seconds, at most an hour; a date is not read
}

func badHead(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errBadAnswer)
}

// parseHead reads a head that ends in an empty line, strictly: whatever two readers could take for two different
// things is an error, as is a body without a known end.
func parseHead(head []byte) (answerHead, error) {
	h := answerHead{length: -1}
	line, rest, ok := cutLine(head)
	if !ok || len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." || line[8] != ' ' ||
		(line[7] != '0' && line[7] != '1') || (len(line) > 12 && line[12] != ' ') || !isFieldValue(line) {
		return h, badHead("status line")
	}
	for _, c := range line[9:12] {
		if c-'0' > 9 {
			return h, badHead("status")
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return h, badHead("status %d", h.status)
	}
	old := line[7] == '0'
	h.close = old
	coded := false
	for n := 0; ; n++ {
		if line, rest, ok = cutLine(rest); !ok {
			return h, badHead("header line without CRLF")
		}
		if len(line) == 0 {
			break
		}
		name, value, found := bytes.Cut(line, []byte{':'})
		value = bytes.Trim(value, " \t")
		if !found || !isToken(name) || !isFieldValue(value) || n == maxFields {
			return h, badHead("header field %d", n)
		}
		switch {
		case isName(name, "content-length"):
			if h.length >= 0 {
				return h, badHead("two Content-Length")
			}
			if h.length, ok = parseLength(value); !ok {
				return h, badHead("Content-Length")
			}
		case isName(name, "transfer-encoding"):
			if coded || old || !isName(value, "chunked") {
				return h, badHead("Transfer-Encoding")
			}
			coded, h.chunked = true, true
		case isName(name, "content-type"):
			h.kind = value
		case isName(name, "metadata"):
			h.meta = value
		case isName(name, "retry-after"):
			if n, ok := parseLength(value); ok {
				h.rest = time.Duration(min(n, 3600)) * time.Second
			}
		case isName(name, "connection"):
			h.close = h.close || hasWord(value, "close")
		}
	}
	switch {
	case h.chunked && h.length >= 0:
		return h, badHead("Content-Length and Transfer-Encoding")
	case h.status < 200 || h.status == 204 || h.status == 304:
		h.length, h.chunked = 0, false
	case !h.chunked && h.length < 0:
		return h, badHead("neither Content-Length nor chunks")
	}
	return h, nil
}

// cutLine cuts the first line off, which must end in CRLF and have no other LF.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 1 || b[i-1] != '\r' {
		return nil, b, false
	}
	return b[:i-1], b[i+1:], true
}

// parseLength reads a Content-Length: digits only, at most 18 of them.
func parseLength(v []byte) (int64, bool) {
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

// isName compares a field's name, or a word, with one in lower case.
func isName(b []byte, lower string) bool {
	return len(b) == len(lower) && bytes.EqualFold(b, []byte(lower))
}

// hasWord finds a word, in lower case, in a list separated by commas.
func hasWord(list []byte, lower string) bool {
	for len(list) > 0 {
		word, rest, _ := bytes.Cut(list, []byte{','})
		if isName(bytes.Trim(word, " \t"), lower) {
			return true
		}
		list = rest
	}
	return false
}

// isToken reports whether b is a token of RFC 9110 and not empty.
func isToken(b []byte) bool {
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

// isFieldValue reports whether b has no control characters but tabs.
func isFieldValue(b []byte) bool {
	for _, c := range b {
		if c < 0x20 && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
