package router

import (
	"bytes"
	"fmt"

	"pdrouter/router/openai/jsonscan"
)

// errEventTooLarge is found by errors.Is in the error for an event that exceeds the bound. It is an errAnswerSize.
var errEventTooLarge = fmt.Errorf("%w: one server-sent event", errAnswerSize)

var (
	dataField  = []byte("data:")
	eventField = []byte("event:")
	doneData   = []byte("[DONE]")
)

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

// Lines end in LF or CRLF: no engine ends them in a lone CR, which within a line is kept like any other byte.

func trimCR(line []byte) []byte { return bytes.TrimSuffix(line, []byte{'\r'}) }

// dataOf is the value of a data line.
func dataOf(line []byte) ([]byte, bool) {
	v, ok := bytes.CutPrefix(line, dataField)
	if ok && len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	return v, ok
}

// sseFrames cuts a stream into whole events, each with the blank line that ends it, so that joined they are the
// stream to the byte. An event of more than max bytes is an error.
type sseFrames struct {
	max  int
	buf  []byte
	from int   // events before it were returned
	ends []int // of the whole events behind it
	last int   // where the event begins that has not ended
	line int   // where its last line begins
}

func newSSEFrames(max int) *sseFrames { return &sseFrames{max: max} }

// reset begins another stream in the same memory.
func (f *sseFrames) reset(max int) { *f = sseFrames{max: max, buf: f.buf[:0], ends: f.ends[:0]} }

// empty reports whether there is nothing in it: no event that was not returned, and none that has begun.
func (f *sseFrames) empty() bool { return f.from == len(f.buf) }

// Push takes the next bytes of the stream; p is copied. Take all events with Next before: those returned earlier are
// overwritten. The error is errEventTooLarge.
func (f *sseFrames) Push(p []byte) error {
	if f.from > 0 {
		f.buf = f.buf[:copy(f.buf, f.buf[f.from:])]
		f.line -= f.from
		f.last -= f.from
		for i := range f.ends {
			f.ends[i] -= f.from
		}
		f.from = 0
	}
	look := len(f.buf)
	f.buf = append(f.buf, p...)
	for {
		i := bytes.IndexByte(f.buf[look:], '\n')
		if i < 0 {
			return f.bound(len(f.buf))
		}
		end := look + i + 1
		blank := len(trimCR(f.buf[f.line:end-1])) == 0
		f.line, look = end, end
		if !blank {
			continue
		}
		if err := f.bound(end); err != nil {
			return err
		}
		f.ends = append(f.ends, end)
		f.last = end
	}
}

func (f *sseFrames) bound(end int) error {
	if end-f.last > f.max {
		return fmt.Errorf("router: stream: more than %d bytes: %w", f.max, errEventTooLarge)
	}
	return nil
}

// Next returns the next whole event, valid until the next Push.
func (f *sseFrames) Next() ([]byte, bool) {
	if len(f.ends) == 0 {
		return nil, false
	}
	end := f.ends[0]
	f.ends = f.ends[:copy(f.ends, f.ends[1:])]
	event := f.buf[f.from:end:end]
	f.from = end
	return event, true
}

// kindOf says what a whole event of the shape's streams carries. It is the event's type that says it, where the shape's
// events have types, be it named by a field of the event or only within its data; else the data, of several lines the first.
func (s shape) kindOf(event []byte) eventKind {
	start, end, n := payloadSpan(event)
	if n == 0 {
		return eventComment
	}
	data := event[start:end]
	if types := formats[s].events; types != nil {
		kind, ok := types[string(eventType(event))]
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

// eventType is the value of the event's last field of that name, nil if there is none.
func eventType(event []byte) (name []byte) {
	for len(event) > 0 {
		line := event
		if i := bytes.IndexByte(event, '\n'); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		if v, ok := bytes.CutPrefix(trimCR(line), eventField); ok {
			name = bytes.TrimPrefix(v, []byte{' '})
		}
	}
	return name
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

// eventPayload returns the data of a whole event that has exactly one data line.
func eventPayload(event []byte) ([]byte, bool) {
	start, end, n := payloadSpan(event)
	return event[start:end], n == 1
}

// payloadSpan is where the value of the event's first data line lies, and how many data lines there are.
func payloadSpan(event []byte) (start, end, n int) {
	for at := 0; at < len(event); {
		next := len(event)
		stop := next
		if i := bytes.IndexByte(event[at:], '\n'); i >= 0 {
			stop, next = at+i, at+i+1
		}
		line := trimCR(event[at:stop])
		if v, ok := dataOf(line); ok {
			if n++; n == 1 {
				end = at + len(line)
				start = end - len(v)
			}
		}
		at = next
	}
	return start, end, n
}
