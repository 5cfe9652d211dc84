package leg

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"

	"pdrouter/router/openai/answer"
	"pdrouter/router/upstream"
)

// AskTokens asks for a whole answer that has the prompt's token ids, and takes the ids out of the body. ids is their array as the engine
// wrote it, nil if the answer has none. If the answer is larger than max bytes with the ids, it is read without them, and dropped is true: so
// max bounds what is buffered, and a long prompt fails no request.
func (l *Leg) AskTokens(req *upstream.Request, max int) (ids []byte, dropped bool, v Result) {
	if v = l.Send(req, max); v != Usable {
		return nil, false, v
	}
	body, dropped, err := readDroppingIDs(l.Response, max)
	if l.Body = body; err != nil {
		return nil, dropped, l.failed(err)
	}
	ids, l.Body = answer.TakePromptIDs(body) // the leg lives longer than the ids
	return ids, dropped, l.parse()
}

// readDroppingIDs reads an answer of at most max bytes. If it has more, it leaves out the array of the prompt's token ids, if there is one.
func readDroppingIDs(r io.Reader, max int) (body []byte, dropped bool, err error) {
	for inArray := false; ; {
		from := len(body)
		if cap(body) == from {
			body = slices.Grow(body, min(512+from, 512+max-from)) // twice as much, within the bound
		}
		n, err := r.Read(body[from:cap(body)])
		body = body[:from+n]
		if inArray {
			rest := body[from:]
			end := bytes.IndexByte(rest, ']')
			inArray = end < 0
			if inArray {
				rest = nil
			} else {
				rest = rest[end:]
			}
			body = append(body[:from], rest...)
		}
		switch {
		case errors.Is(err, io.EOF):
			return body, dropped, nil
		case err != nil:
			return body, dropped, err
		case len(body) <= max:
			continue
		case dropped:
			return body, true, upstream.ErrTooLarge
		}
		start, end := idsIn(body)
		if start < 0 {
			return body, false, upstream.ErrTooLarge
		}
		dropped, inArray = true, end < 0
		if inArray {
			end = len(body)
		}
		if body = slices.Delete(body, start, end); len(body) > max {
			return body, true, upstream.ErrTooLarge
		}
	}
}

// idsIn returns where the elements of the array of the prompt's token ids lie in the first part of an answer: start is below 0 if it has no
// such array, and end if the array has not ended. What it finds is no text: quotes within one are escaped.
func idsIn(body []byte) (start, end int) {
	const key = `"prompt_token_ids"`
	at := bytes.Index(body, []byte(key))
	if at < 0 {
		return -1, -1
	}
	rest := bytes.TrimLeft(body[at+len(key):], " \t\r\n:")
	if len(rest) == 0 || rest[0] != '[' {
		return -1, -1
	}
	start = len(body) - len(rest) + 1
	if end = bytes.IndexByte(body[start:], ']'); end >= 0 {
		end += start
	}
	return start, end
}

// parse reads what the router needs of a whole answer.
func (l *Leg) parse() Result {
	var ok bool
	switch l.Answer, ok = answer.Parse(l.Body); {
	case !ok:
		return InvalidResponse
	case l.Answer.Failed:
		return Broken
	}
	return Usable
}

// MayRefuse reports whether a member for token ids that the leg carried may be why its engine rejected it.
func (l *Leg) MayRefuse(member string, v Result) bool {
	return v == Rejected && (l.Status == http.StatusBadRequest || l.Status == http.StatusUnprocessableEntity) && l.Engine.TokenIDs.MayRefuse(member, l.Body)
}
