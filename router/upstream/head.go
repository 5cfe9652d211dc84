package upstream

import (
	"bytes"
	"fmt"
	"time"

	"pdrouter/internal/httpsyntax"
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
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrBadResponse)
}

// parseHead reads a head that ends in an empty line, strictly: whatever two readers could take for two different
// things is an error, as is a body without a known end.
func parseHead(head []byte) (answerHead, error) {
	h := answerHead{length: -1}
	line, rest, ok := httpsyntax.CutLine(head)
	if !ok || len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." || line[8] != ' ' ||
		(line[7] != '0' && line[7] != '1') || (len(line) > 12 && line[12] != ' ') || !httpsyntax.IsFieldValue(line) {
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
		if line, rest, ok = httpsyntax.CutLine(rest); !ok {
			return h, badHead("header line without CRLF")
		}
		if len(line) == 0 {
			break
		}
		name, value, found := bytes.Cut(line, []byte{':'})
		value = bytes.Trim(value, " \t")
		if !found || !httpsyntax.IsToken(name) || !httpsyntax.IsFieldValue(value) || n == maxFields {
			return h, badHead("header field %d", n)
		}
		switch {
		case httpsyntax.IsName(name, "content-length"):
			if h.length >= 0 {
				return h, badHead("two Content-Length")
			}
			if h.length, ok = httpsyntax.ContentLength(value); !ok {
				return h, badHead("Content-Length")
			}
		case httpsyntax.IsName(name, "transfer-encoding"):
			if coded || old || !httpsyntax.IsName(value, "chunked") {
				return h, badHead("Transfer-Encoding")
			}
			coded, h.chunked = true, true
		case httpsyntax.IsName(name, "content-type"):
			h.kind = value
		case httpsyntax.IsName(name, "metadata"):
			h.meta = value
		case httpsyntax.IsName(name, "retry-after"):
			if n, ok := httpsyntax.ContentLength(value); ok {
				h.rest = time.Duration(min(n, 3600)) * time.Second
			}
		case httpsyntax.IsName(name, "connection"):
			h.close = h.close || httpsyntax.ContainsToken(value, "close")
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
