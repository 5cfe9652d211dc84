package openai

import (
	"net/http"
	"strings"

	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// Why a request is served by one engine though nothing in its body asks for that: values of Body.Unsplittable.
const (
	UnsplitPassed = "pass_through"    // the route knows no hand-off
	UnsplitStored = "stored_response" // the engine that has it answers
)

// Passthrough is what is known of a request that is passed to one engine, whose answer may be anything. A model whose engines
// are of two kinds has its decode engines serve it: they are what answers its clients otherwise, and every one of them has
// the whole model. It leaves no state in an engine, so another one is asked as long as none has answered.
type Passthrough struct {
	Method      string
	ContentType string // of the body; "" if there is none
	form        *form  // nil if the body is no form
}

// ParsePassed reads the JSON body of a request that is passed on.
func ParsePassed(s Shape, raw []byte, lim Limits) (*Body, *Error) {
	b, e := ParseBody(s, raw, lim)
	if e != nil {
		return nil, e
	}
	b.Passthrough = &Passthrough{Method: http.MethodPost, ContentType: "application/json"}
	b.Stream = false // that is for the engine to say
	b.Unsplittable, b.promptBytes = UnsplitPassed, len(raw)
	return b, nil
}

// AskStored returns the body of a request, of that method, for a response that an engine has stored: it has none of its own.
func AskStored(method string) *Body {
	return &Body{
		Shape: ShapeResponses, N: 1, MaxTokens: -1, Prompts: 1, samplingMembers: -1, Unsplittable: UnsplitStored, Passthrough: &Passthrough{Method: method},
	}
}

// MayBeJSON reports whether a client may take an answer for JSON that tells of the engines' hand-off, whatever its type says.
func MayBeJSON(b []byte) bool {
	s := jsonscan.Scanner{Bytes: b, MaxDepth: answer.MaxAnswerDepth}
	s.Space()
	c := s.Peek()
	return (c == '{' || c == '[') && answer.NamesTransfer(b) && IsJSONValue(&s)
}

// IsJSONValue reports whether all of it is one value.
func IsJSONValue(s *jsonscan.Scanner) bool {
	s.Space()
	return s.Value(0) && s.End()
}

func IsJSON(ctype string) bool { return MediaType(ctype) == "application/json" }

func IsEventStream(ctype string) bool { return MediaType(ctype) == "text/event-stream" }

// MediaType is a content type without its parameters, in lower case.
func MediaType(ctype string) string {
	t, _, _ := strings.Cut(ctype, ";")
	return strings.ToLower(strings.TrimSpace(t))
}
