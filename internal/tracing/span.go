package tracing

import (
	"fmt"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"pdrouter/router/trace"
)

func scope(version string) *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "pdrouter", Version: version}
}

// spanOf is one span of a trace as OTLP has it. All but the first are below the first.
func spanOf(t *trace.Trace, i int) *tracepb.Span {
	all, _ := t.Spans()
	s := &all[i]
	out := &tracepb.Span{
		TraceId: t.ID[:], SpanId: s.ID[:], Name: text(s.Name), Kind: kinds[s.Kind], TraceState: text(t.State),
		StartTimeUnixNano: uint64(s.Begin.UnixNano()), EndTimeUnixNano: uint64(max(s.Begin.UnixNano(), s.End.UnixNano())),
		Attributes: attributesOf(s.Attributes), Flags: uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK) | 1,
	}
	switch {
	case i > 0:
		out.ParentSpanId = all[0].ID[:]
	case t.Parent != trace.SpanID{}:
		out.ParentSpanId = t.Parent[:]
		out.Flags |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, &tracepb.Span_Event{TimeUnixNano: uint64(e.At.UnixNano()), Name: e.Name, Attributes: attributesOf(e.Attributes)})
	}
	if s.Failed != "" {
		out.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: text(s.Failed)}
		out.Attributes = append(out.Attributes, attributeOf("error.type", s.Failed))
	}
	return out
}

var kinds = [...]tracepb.Span_SpanKind{trace.Internal: tracepb.Span_SPAN_KIND_INTERNAL, trace.Server: tracepb.Span_SPAN_KIND_SERVER, trace.Client: tracepb.Span_SPAN_KIND_CLIENT}

// attributesOf leaves out empty texts: they say that there is nothing to say.
func attributesOf(all []trace.Attribute) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, 0, len(all))
	for _, a := range all {
		if a.Value != "" {
			out = append(out, attributeOf(a.Key, a.Value))
		}
	}
	return out
}

// text is a string as it may be sent: one that is not UTF-8 would fail the whole batch.
func text(s string) string { return strings.ToValidUTF8(s, "?") }

func attributeOf(key string, value any) *commonpb.KeyValue {
	v := new(commonpb.AnyValue)
	switch x := value.(type) {
	case string:
		v.Value = &commonpb.AnyValue_StringValue{StringValue: text(x)}
	case bool:
		v.Value = &commonpb.AnyValue_BoolValue{BoolValue: x}
	case int64:
		v.Value = &commonpb.AnyValue_IntValue{IntValue: x}
	case float64:
		v.Value = &commonpb.AnyValue_DoubleValue{DoubleValue: x}
	default:
		v.Value = &commonpb.AnyValue_StringValue{StringValue: text(fmt.Sprint(x))}
	}
	return &commonpb.KeyValue{Key: key, Value: v}
}
