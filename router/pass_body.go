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
