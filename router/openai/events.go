package openai

import (
	"bytes"

	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

var doneData = []byte("[DONE]")

// EventKind is what one whole event carries.
type EventKind uint8

const (
	EventComment EventKind = iota // nothing of the answer: keep-alives
	eventEarly                    // the request was taken, which says nothing of its answer
	EventData                     // data of any kind but these
	EventError                    // the answer has failed
	EventDone                     // the answer is whole: the route's terminal event
)

func (k EventKind) String() string {
	return [...]string{"comment", "early", "data", "error", "done"}[k]
}

// KindOf says what a whole event of the shape's streams carries. It is the event's type that says it, where the shape's
// events have types, be it named by a field of the event or only within its data; else the data, of several lines the first.
func (s Shape) KindOf(event []byte) EventKind {
	start, end, n := sse.DataSpan(event)
	if n == 0 {
		return EventComment
	}
	data := event[start:end]
	if types := formats[s].events; types != nil {
		kind, ok := types[string(sse.Type(event))]
		if !ok {
			kind, ok = types[dataType(data)]
		}
		if ok {
			return kind
		}
	} else if n == 1 && bytes.Equal(data, doneData) {
		return EventDone
	}
	if bytes.Contains(data, []byte(`"error"`)) {
		if a, ok := answer.Parse(data); ok && a.Failed {
			return EventError
		}
	}
	return EventData
}

// dataType is the member type of an event's data, "" if there is none.
func dataType(data []byte) string {
	s := jsonscan.Scanner{Bytes: data, MaxDepth: answer.MaxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		if string(m.Key) == "type" && s.Peek() == '"' {
			raw, _, _ := s.Str()
			return string(raw)
		}
		s.Value(1)
	}
	return ""
}
