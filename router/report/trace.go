package report

import (
	"strings"

	"pdrouter/router/dispatch"
	"pdrouter/router/trace"
)

// endTrace ends the trace of a finished request with what its summary says. t is nil if the request is not sampled.
func (s *Summary) endTrace(t *trace.Trace) {
	if t == nil {
		return
	}
	if s.Phases.Queue > 0 {
		t.Add("queue", s.Arrived.Add(s.Phases.Admit), s.Arrived.Add(s.Phases.Queue))
	}
	attributes := []trace.Attribute{
		{Key: "http.route", Value: s.Route}, {Key: "http.response.status_code", Value: int64(s.Status)},
		{Key: trace.RequestModel, Value: s.Model}, {Key: trace.Streams, Value: s.Stream},
		{Key: trace.InputTokens, Value: int64(s.PromptTokens)}, {Key: trace.OutputTokens, Value: int64(s.OutputTokens)}, {Key: trace.CachedTokens, Value: int64(s.CachedTokens)},
		{Key: "pdrouter.request_id", Value: s.RequestID}, {Key: "pdrouter.outcome", Value: s.Outcome.String()}, {Key: "pdrouter.reason", Value: s.Reason},
		{Key: "pdrouter.prefill", Value: s.Prefill}, {Key: "pdrouter.decode", Value: s.Decode}, {Key: "pdrouter.attempts", Value: int64(s.Attempts)},
		{Key: "pdrouter.predicted_cached_tokens", Value: int64(s.PredictedCachedTokens)}, {Key: "pdrouter.cached_by", Value: s.CachedBy.String()},
	}
	if s.CountedCachedTokens >= 0 {
		attributes = append(attributes, trace.Attribute{Key: "pdrouter.counted_cached_tokens", Value: int64(s.CountedCachedTokens)})
	}
	if s.Stream && s.Phases.FirstToken > 0 {
		attributes = append(attributes, trace.Attribute{Key: trace.FirstChunk, Value: s.Phases.FirstToken.Seconds()})
	}
	estimated := ""
	for _, p := range s.FirstTokenParts() {
		attributes = append(attributes, trace.Attribute{Key: "pdrouter.first_token." + p.Part + "_seconds", Value: p.Seconds})
		if p.Estimated {
			estimated += " " + p.Part
		}
	}
	if estimated != "" {
		attributes = append(attributes, trace.Attribute{Key: "pdrouter.first_token.estimated", Value: estimated[1:]})
	}
	name := s.Route
	if operation := operationOf(s.Route); operation != "" {
		attributes = append(attributes, trace.Attribute{Key: trace.Operation, Value: operation})
		name = operation + " " + s.Model
	}
	at := s.Arrived
	for i, took := range s.Phases.Stages() {
		if took >= 0 {
			at = at.Add(took)
			t.Event(nil, "end of "+Stage(i).String(), at, trace.Attribute{Key: "pdrouter.seconds", Value: took.Seconds()})
		}
	}
	failed := ""
	if s.Outcome != dispatch.Completed || s.Status >= 400 {
		failed = s.Reason
	}
	t.Finish(name, s.Arrived.Add(s.Phases.Total), failed, attributes...)
}

// operationOf is the name that the semantic conventions have for what a route does; "" if they have none.
func operationOf(route string) string {
	switch {
	case route == "/v1/completions", route == "/inference/v1/generate":
		return "text_completion"
	case route == "/v1/chat/completions", route == "/v1/chat/completions/batch", route == "/v1/messages", strings.HasPrefix(route, "/v1/responses"):
		return "chat"
	case route == "/v1/embeddings", route == "/v2/embed":
		return "embeddings"
	}
	return ""
}
