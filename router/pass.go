package router

import (
	"net/http"
	"strings"

	"pdrouter/router/openai/jsonscan"
)

// Why a request is served by one engine though nothing in its body asks for that: values of body.unsplittable.
const (
	unsplitPassed = "pass_through"    // the route knows no hand-off
	unsplitStored = "stored_response" // the engine that has it answers
)

// passage is what is known of a request that is passed to one engine, whose answer may be anything. A model whose engines
// are of two kinds has its decode engines serve it: they are what answers its clients otherwise, and every one of them has
// the whole model. It leaves nothing behind in an engine, so it is asked of another one as long as none has answered.
type passage struct {
	method string
	ctype  string // of the body; "" if there is none
	form   *form  // nil if the body is no form
}

// parsePassed reads the JSON body of a request that is passed on.
func parsePassed(s shape, raw []byte, lim bodyLimits) (*body, *httpError) {
	b, e := parseBody(s, raw, lim)
	if e != nil {
		return nil, e
	}
	b.pass = &passage{method: http.MethodPost, ctype: "application/json"}
	b.stream = false // that is for the engine to say
	b.unsplittable, b.promptBytes = unsplitPassed, len(raw)
	return b, nil
}

// write completes the letter to the engine.
func (p *passage) write(m *letter) {
	m.Method = p.method
	if p.ctype == "" {
		m.Header = m.Header[1:]
	} else {
		m.Header[0].Value = p.ctype
	}
	if p.method == http.MethodGet {
		m.Body = nil
	}
	for i := range m.Header {
		if m.Header[i].Name == "Accept" {
			m.Header[i].Value = "*/*"
		}
	}
}

// told reads an answer that is not streamed, without the engines' hand-off. passed says that it may be any answer.
func (l *call) told(limit int, passed bool) (v verdict) {
	if passed {
		v = l.any(limit)
	} else {
		v = l.whole(limit)
	}
	if v != vUsable || passed && !isJSON(l.ctype) && !mayBeJSON(l.body) {
		return v
	}
	body, ok := stripAnswer(l.body, &l.ans)
	if !ok {
		return vGarbage
	}
	l.body = body
	return vUsable
}

// any reads a 200 answer whatever it is, but that JSON has to be JSON.
func (l *call) any(max int) verdict {
	var err error
	if l.body, err = l.resp.ReadAll(l.body[:0], max); err != nil {
		return l.failed(err)
	}
	if !isJSON(l.ctype) {
		return vUsable
	}
	ans, ok := parseAnswer(l.body)
	if ok {
		l.ans = ans
	} else if s := (jsonscan.Scanner{Bytes: l.body, MaxDepth: maxAnswerDepth}); !isValue(&s) {
		return vGarbage
	}
	return vUsable
}

// metadata is the one field of an answer's head that clients get besides its content type: what stock engines say of an
// answer of bytes, without which nobody can read it.
func (l *call) metadata() string {
	if l.resp == nil || namesTransfer([]byte(l.resp.Metadata)) {
		return ""
	}
	return l.resp.Metadata
}

// mayBeJSON reports whether a client may take an answer for JSON that tells of the engines' hand-off, whatever its type says.
func mayBeJSON(b []byte) bool {
	s := jsonscan.Scanner{Bytes: b, MaxDepth: maxAnswerDepth}
	s.Space()
	c := s.Peek()
	return (c == '{' || c == '[') && namesTransfer(b) && isValue(&s)
}

// isValue reports whether all of it is one value.
func isValue(s *jsonscan.Scanner) bool {
	s.Space()
	return s.Value(0) && s.End()
}

func isJSON(ctype string) bool { return mediaType(ctype) == "application/json" }

func isEventStream(ctype string) bool { return mediaType(ctype) == "text/event-stream" }

// mediaType is a content type without its parameters, in lower case.
func mediaType(ctype string) string {
	t, _, _ := strings.Cut(ctype, ";")
	return strings.ToLower(strings.TrimSpace(t))
}
