// Package trace is what the request path knows of traces: W3C trace contexts, and the record of a request that is sampled. It knows no
// request and links no exporter: package exchange notes what happens, package report says what became of the request, and a Tracer
// (internal/tracing) exports the record.
//
// A request that is not sampled has no record. Every method of a nil *Trace does nothing.
package trace

import (
	"sync"
	"time"
)

// Tracer decides which requests are sampled, and takes their traces. It is safe for concurrent use.
type Tracer interface {
	// Samples reports whether the trace of a request is recorded whose client does not say.
	Samples(id ID) bool
	// Export takes a trace that does not change any more. It must not block.
	Export(t *Trace)
}

// Kind is the kind of a span.
type Kind uint8

// The kinds of spans: a part of the gateway's own work, a client's request, and a request to an engine.
const (
	Internal Kind = iota
	Server
	Client
)

// Attribute is a key with its value: a string, a bool, an int64 or a float64.
type Attribute struct {
	Key   string
	Value any
}

// Event is something that happened in a span.
type Event struct {
	Name       string
	At         time.Time
	Attributes []Attribute
}

// Span is a part of a request's life.
type Span struct {
	ID         SpanID
	Name       string
	Kind       Kind
	Begin, End time.Time
	Failed     string // why it failed; "" if it did not
	Attributes []Attribute
	Events     []Event

	of any // what the span is of; see Trace.Begin
}

// maxSpans bounds the spans of one trace: a request for many choices, each of which is tried again, has no more.
const maxSpans = 256

// Trace is the record of one request that is sampled. The first of its spans is the request's; the others are below it. It is safe for
// concurrent use.
type Trace struct {
	ID     ID
	Parent SpanID // the client's span; zero if it has none
	State  string // tracestate, as the client sent it

	tracer Tracer

	mu      sync.Mutex
	spans   []Span
	omitted int  // spans beyond maxSpans
	over    bool // it was exported
}

// Begin returns the context in which a request is served that arrived at a time, and its trace if it is sampled. parent is what the client
// sent. The client decides whether the request is sampled; if it sent nothing, the tracer does.
func Begin(tracer Tracer, parent Context, arrived time.Time) (Context, *Trace) {
	var id ID
	var span SpanID
	state := ""
	if parent != "" {
		var sampled bool
		if id, span, sampled, state = parent.read(); !sampled {
			return parent, nil
		}
	} else if id = newID(); !tracer.Samples(id) {
		return contextOf(id, newSpanID(), false, ""), nil // so that engines do not decide again
	}
	t := &Trace{ID: id, Parent: span, State: state, tracer: tracer}
	t.spans = append(make([]Span, 0, 8), Span{ID: newSpanID(), Kind: Server, Begin: arrived})
	return contextOf(t.ID, t.spans[0].ID, true, t.State), t
}

// Begin begins a span of something, which Context, Event and End find it by.
func (t *Trace) Begin(of any, name string, kind Kind, at time.Time, attributes ...Attribute) {
	t.add(Span{Name: name, Kind: kind, Begin: at, Attributes: attributes, of: of})
}

// Add adds a span that is over.
func (t *Trace) Add(name string, begin, end time.Time, attributes ...Attribute) {
	t.add(Span{Name: name, Begin: begin, End: end, Attributes: attributes})
}

func (t *Trace) add(s Span) {
	if t == nil {
		return
	}
	s.ID = newSpanID()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
	case len(t.spans) == maxSpans:
		t.omitted++
	default:
		t.spans = append(t.spans, s)
	}
}

// Context is the context in which something works that has a span, or else that of the request.
func (t *Trace) Context(of any) Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.spans[0]
	if open := t.open(of); open != nil {
		s = open
	}
	return contextOf(t.ID, s.ID, true, t.State)
}

// Event notes that something happened in the open span of something, or in the request's if of is nil.
func (t *Trace) Event(of any, name string, at time.Time, attributes ...Attribute) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open(of); s != nil {
		s.Events = append(s.Events, Event{name, at, attributes})
	}
}

// End ends the open span of something, if there is one. failed says why it failed; "" if it did not.
func (t *Trace) End(of any, at time.Time, failed string, attributes ...Attribute) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open(of); s != nil {
		s.End, s.Failed = at, failed
		s.Attributes = append(s.Attributes, attributes...)
	}
}

// open returns the open span of something; nil if there is none.
func (t *Trace) open(of any) *Span {
	if t.over {
		return nil
	}
	for i := len(t.spans) - 1; i >= 0; i-- {
		if s := &t.spans[i]; s.of == of && s.End.IsZero() {
			return s
		}
	}
	return nil
}

// Finish ends the request's span and all that are open, and has the trace exported. Later calls do nothing.
func (t *Trace) Finish(name string, at time.Time, failed string, attributes ...Attribute) {
	if t == nil {
		return
	}
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.over = true
	root := &t.spans[0]
	root.Name, root.Failed, root.Attributes = name, failed, append(root.Attributes, attributes...)
	for i := range t.spans {
		if s := &t.spans[i]; s.End.IsZero() {
			s.End = at
		}
		t.spans[i].of = nil // a leg, which must not be kept
	}
	t.mu.Unlock()
	t.tracer.Export(t)
}

// Spans returns the spans of a finished trace, the request's first, and how many others there would be. The caller must not change them.
func (t *Trace) Spans() (spans []Span, omitted int) { return t.spans, t.omitted }

// Keys of attributes, of OpenTelemetry's semantic conventions for generative AI.
const (
	Operation    = "gen_ai.operation.name"
	RequestModel = "gen_ai.request.model"
	Streams      = "gen_ai.request.stream"
	InputTokens  = "gen_ai.usage.input_tokens"
	OutputTokens = "gen_ai.usage.output_tokens"
	CachedTokens = "gen_ai.usage.cache_read.input_tokens"
	FirstChunk   = "gen_ai.response.time_to_first_chunk" // seconds
)
