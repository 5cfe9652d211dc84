package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Pace is how a fake streams: so many tokens, the first at once and each of the others so long after the one before. A request
// asks for it in its body, by a member that every router passes on because no router knows it.
type Pace struct {
	Tokens int           `json:"tokens"`
	Every  time.Duration `json:"every"` // in nanoseconds
}

// paceKey is the member of a request's body that holds its pace: an object without objects in it.
const paceKey = "bench_pace"

// maxPaced bounds what one request can ask a fake for.
const maxPaced = 1 << 20

// PacedBody is a streamed chat request for a fake that paces its answer.
func PacedBody(p Pace) []byte {
	return fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":%d,%q:{"tokens":%d,"every":%d},"messages":[{"role":"user","content":"a block of KV cache travels"}]}`,
		Model, p.Tokens, paceKey, p.Tokens, p.Every)
}

// paceOf reads the pace that a body asks for. It reports false if it asks for none.
func paceOf(body []byte) (p Pace, ok bool) {
	_, object, found := bytes.Cut(body, []byte(`"`+paceKey+`":`))
	end := bytes.IndexByte(object, '}')
	if !found || end < 0 || json.Unmarshal(object[:end+1], &p) != nil {
		return Pace{}, false
	}
	return p, p.Tokens > 0 && p.Tokens <= maxPaced && p.Every >= 0
}

// Each token's text is the time at which the engine wrote it, in nanoseconds since 1970: 19 digits until the year 2286. So
// whoever reads it on the same machine knows what came between.
const (
	pacedHead  = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"` + Model + `","choices":[{"index":0,"delta":{"content":" `
	pacedTail  = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	PacedDone  = "data: [DONE]\n\n"
	stampBytes = 19
)

// AppendToken appends the event of a token that is written at a time.
func AppendToken(dst []byte, at time.Time) []byte {
	dst = append(dst, pacedHead...)
	dst = strconv.AppendInt(dst, at.UnixNano(), 10)
	return append(dst, pacedTail...)
}

// StampOf is when the engine wrote a token's event.
func StampOf(event []byte) (time.Time, bool) {
	rest, ok := bytes.CutPrefix(event, []byte(pacedHead))
	if !ok || len(rest) != stampBytes+len(pacedTail) || string(rest[stampBytes:]) != pacedTail {
		return time.Time{}, false
	}
	ns, err := strconv.ParseInt(string(rest[:stampBytes]), 10, 64)
	return time.Unix(0, ns), err == nil
}

// paced is an answer that comes token by token. Its only goroutine is the one that serves the connection. It waits by
// reading from it: the time of the next token ends the read, as does a client that leaves.
type paced struct {
	Pace
	conn net.Conn
	sent int
	due  time.Time
	none [1]byte
}

func streamPaced(q *fasthttp.RequestCtx, p Pace) {
	q.SetContentType("text/event-stream; charset=utf-8")
	q.SetBodyStream(&paced{Pace: p, conn: q.Conn(), due: time.Now()}, -1)
}

// Read waits for the next event and returns it; p must have room for one.
func (s *paced) Read(p []byte) (int, error) {
	switch s.sent++; {
	case s.sent > s.Tokens+1:
		if err := s.conn.SetReadDeadline(time.Time{}); err != nil { // the connection's next request may come when it likes
			return 0, err
		}
		return 0, io.EOF
	case s.sent > s.Tokens:
		return copy(p, PacedDone), nil
	}
	if wait := time.Until(s.due); wait > 0 {
		if err := s.conn.SetReadDeadline(s.due); err != nil {
			return 0, err
		}
		if _, err := s.conn.Read(s.none[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, fmt.Errorf("bench: the client does not wait for its answer: %w", io.ErrUnexpectedEOF) // which the server does not log
		}
	}
	s.due = s.due.Add(s.Every) // not of now: a token that is late makes none of those behind it late
	return len(AppendToken(p[:0], time.Now())), nil
}
