// Package choices merges the answers to the choices of one request, each of which an engine gave alone, into the answer that one engine
// would have given: streams event by event, or whole bodies. Package fanout has each choice served
// by an exchange of its own and calls this package; package openai makes their bodies.
package choices

import (
	"bytes"
	"strconv"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/openai/sse"
)

// Merger joins the streams of the choices of one request into the one stream that a single engine would send: events as
// they come, each whole, with the choice's index and one id; after the last of them the usage of all, if the engines
// tell it, and one terminal event. It is a value without I/O; it belongs to one goroutine at a time.
type Merger struct {
	n           int // choices of each prompt
	Parts       []part
	id, created []byte // of the first event that had them
	done        int    // parts whose terminal event came
}

// part is what is known of one choice's stream.
type part struct {
	last []byte // its event with the usage of all of it; nil if it sent none
	Done bool
}

// Outcome is what an event leaves the stream in.
type Outcome uint8

const (
	Continues Outcome = iota
	Finished          // the terminal event is the last of what was appended
	Failed            // an engine's error event is the last of what was appended
	Invalid           // the event is none that can be relayed: nothing was appended
)

func NewMerger(prompts, n int) *Merger {
	return &Merger{n: n, Parts: make([]part, prompts*n)}
}

// Event appends what the client gets for one whole event of the choice k.
func (m *Merger) Event(dst []byte, k int, event []byte) ([]byte, Outcome) {
	p := &m.Parts[k]
	if p.Done {
		return dst, Invalid
	}
	switch openai.ShapeCompletions.KindOf(event) {
	case openai.EventComment:
		return append(dst, event...), Continues
	case openai.EventError:
		return append(dst, event...), Failed
	case openai.EventDone:
		p.Done = true
		if m.done++; m.done < len(m.Parts) {
			return dst, Continues
		}
		dst, ok := m.usage(dst)
		if !ok {
			return dst, Invalid
		}
		return append(dst, event...), Finished
	}
	start, end, n := sse.DataSpan(event)
	a, ok := readFanned(event[start:end])
	switch {
	case n != 1 || !ok || len(a.indexes) > 1:
		return dst, Invalid
	case len(a.indexes) == 0 && a.counts:
		p.last = append(p.last[:0], event...) // one engine sends one, after everything else
		return dst, Continues
	}
	dst = append(dst, event[:start]...)
	dst = append(dst, jsonscan.Splice(event[start:end], m.edits(&a, k))...)
	return append(dst, event[end:]...), Continues
}

// edits are the changes to every event of the choice k.
func (m *Merger) edits(a *fanned, k int) []jsonscan.Edit {
	out := make([]jsonscan.Edit, 0, 4)
	for _, at := range a.indexes {
		out = append(out, jsonscan.Edit{At: at, With: strconv.AppendInt(nil, int64(k), 10)})
	}
	unify := func(one *[]byte, at jsonscan.Span) {
		switch {
		case at.To == 0:
		case *one == nil:
			*one = bytes.Clone(at.Of(a.raw))
		default:
			out = append(out, jsonscan.Edit{At: at, With: *one})
		}
	}
	unify(&m.id, a.id)
	unify(&m.created, a.created)
	return out
}

// usage appends the event with the usage of all, made of the first that came with usage.
func (m *Merger) usage(dst []byte) ([]byte, bool) {
	var first []byte
	usages := make([][]byte, len(m.Parts))
	for k := range m.Parts {
		last := m.Parts[k].last
		if last == nil {
			continue
		}
		if first == nil {
			first = last
		}
		if a, ok := readFanned(payloadOf(last)); ok {
			usages[k] = a.usage.Of(a.raw)
		}
	}
	if first == nil {
		return dst, true
	}
	start, end, _ := sse.DataSpan(first)
	a, ok := readFanned(first[start:end])
	if !ok {
		return dst, false
	}
	edits := append(m.edits(&a, 0), jsonscan.Edit{At: a.usage, With: m.sum(usages)})
	if a.metrics.To > 0 {
		edits = append(edits, jsonscan.Edit{At: a.metrics, With: []byte("null")}) // they are about one choice
	}
	dst = append(dst, first[:start]...)
	dst = append(dst, jsonscan.Splice(first[start:end], edits)...)
	return append(dst, first[end:]...), true
}

// Whole joins the answers of the choices that do not stream, with everything else as in the first. It reports false if
// they are no such answers.
func (m *Merger) Whole(answers [][]byte) ([]byte, bool) {
	var choices []byte
	usages := make([][]byte, len(answers))
	var first fanned
	for k, raw := range answers {
		a, ok := readFanned(raw)
		if !ok || len(a.indexes) != 1 {
			return nil, false
		}
		if k == 0 {
			first = a
			choices = append(choices, '[')
		} else {
			choices = append(choices, ',')
		}
		at := jsonscan.Span{From: a.indexes[0].From - a.choice.From, To: a.indexes[0].To - a.choice.From}
		choices = append(choices, jsonscan.Splice(a.choice.Of(raw), []jsonscan.Edit{{At: at, With: strconv.AppendInt(nil, int64(k), 10)}})...)
		if a.counts {
			usages[k] = a.usage.Of(raw)
		}
	}
	edits := []jsonscan.Edit{{At: first.choices, With: append(choices, ']')}}
	if usage := m.sum(usages); usage != nil {
		edits = append(edits, first.usageEdit(usage))
	}
	if first.metrics.To > 0 {
		edits = append(edits, jsonscan.Edit{At: first.metrics, With: []byte("null")})
	}
	return jsonscan.Splice(first.raw, edits), true
}

// fanned is what a merge needs of one answer, or of one event's data.
type fanned struct {
	raw                                  []byte
	id, created, choices, usage, metrics jsonscan.Span
	choice                               jsonscan.Span   // the first
	indexes                              []jsonscan.Span // of each choice
	counts                               bool            // usage is an object
}

// usageEdit has the answer say that usage, whether it said one before or not.
func (a *fanned) usageEdit(usage []byte) jsonscan.Edit {
	if a.usage.To > 0 {
		return jsonscan.Edit{At: a.usage, With: usage}
	}
	end := bytes.LastIndexByte(a.raw, '}')
	return jsonscan.Edit{At: jsonscan.Span{From: end, To: end}, With: append([]byte(`,"usage":`), usage...)}
}

// readFanned reports false if p is no JSON object, or one whose choices are none or have no index.
func readFanned(p []byte) (fanned, bool) {
	a := fanned{raw: p}
	s := jsonscan.Scanner{Bytes: p, MaxDepth: answer.MaxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		from, null := s.Pos, s.Peek() == 'n'
		var to *jsonscan.Span
		switch string(m.Key) {
		case "id":
			to = &a.id
		case "created":
			to = &a.created
		case "metrics":
			if !null {
				to = &a.metrics
			}
		case "usage":
			a.counts = s.Peek() == '{'
			to = &a.usage
		case "choices":
			if readChoices(&s, &a); s.Why == "" {
				a.choices = jsonscan.Span{From: from, To: s.Pos}
			}
			continue
		}
		if s.Value(1) && to != nil {
			*to = jsonscan.Span{From: from, To: s.Pos}
		}
	}
	return a, s.End()
}

func readChoices(s *jsonscan.Scanner, a *fanned) {
	n := 0
	for ok := s.Array(2); ok && s.Element(&n); {
		from, index := s.Pos, jsonscan.Span{}
		m, is := s.Object(3)
		for is && s.Member(&m) {
			at := s.Pos
			if s.Value(3) && string(m.Key) == "index" {
				index = jsonscan.Span{From: at, To: s.Pos}
			}
		}
		if index.To == 0 {
			s.Fail("a choice without index")
			return
		}
		if n == 1 {
			a.choice = jsonscan.Span{From: from, To: s.Pos}
		}
		a.indexes = append(a.indexes, index)
	}
}

func payloadOf(event []byte) []byte {
	p, _ := sse.Data(event)
	return p
}
