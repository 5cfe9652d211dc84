package router

import (
	"bytes"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

var doneData = []byte("[DONE]")

// eventKind is what one whole event carries.
type eventKind uint8

const (
	eventComment eventKind = iota // nothing of the answer: keep-alives
	eventEarly                    // the request was taken, which says nothing of its answer
	eventData                     // data of any kind but these
	eventError                    // the answer has failed
	eventDone                     // the answer is whole: the route's terminal event
)

func (k eventKind) String() string {
	return [...]string{"comment", "early", "data", "error", "done"}[k]
}

// kindOf says what a whole event of the shape's streams carries. It is the event's type that says it, where the shape's
// events have types, be it named by a field of the event or only within its data; else the data, of several lines the first.
func (s shape) kindOf(event []byte) eventKind {
	start, end, n := sse.DataSpan(event)
	if n == 0 {
		return eventComment
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
		return eventDone
	}
	if bytes.Contains(data, []byte(`"error"`)) {
		if a, ok := parseAnswer(data); ok && a.failed {
			return eventError
		}
	}
	return eventData
}

// dataType is the member type of an event's data, "" if there is none.
func dataType(data []byte) string {
	s := jsonscan.Scanner{Bytes: data, MaxDepth: maxAnswerDepth}
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
