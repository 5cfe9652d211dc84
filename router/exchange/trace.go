package exchange

import (
	"net/url"
	"strconv"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/trace"
)

// The trace of a request that is sampled: a span of its choice of engines for each attempt, of the wait for the pair's handshake, and of
// each leg. The leg's request carries the id of its span. Without a trace all of this does nothing.

// trace is the request's trace; nil if it is not sampled.
func (q *served) trace() *trace.Trace { return q.forwarded.Traced() }

// traceChoice adds the span of a choice of engines that has just been made.
func (x *Exchange) traceChoice() {
	t := x.trace()
	if t == nil {
		return
	}
	t.Add("choose engines", x.selection.Now, time.Now(), trace.Attribute{Key: "pdrouter.attempt", Value: int64(x.Sum.Attempts)},
		trace.Attribute{Key: "pdrouter.reason", Value: x.Sum.Reason}, trace.Attribute{Key: "pdrouter.why", Value: x.choice.Why()},
		trace.Attribute{Key: "pdrouter.cached_by", Value: x.Sum.CachedBy.String()},
		trace.Attribute{Key: "pdrouter.predicted_cached_tokens", Value: int64(x.Sum.PredictedCachedTokens)})
}

// traceLeg begins the span of a leg. Its request must be written after that.
func (x *Exchange) traceLeg(a *attempt, l *leg.Leg, role string) {
	t := x.trace()
	if t == nil {
		return
	}
	attributes := []trace.Attribute{{Key: "pdrouter.role", Value: role}, {Key: "pdrouter.engine", Value: l.Engine.Name},
		{Key: "pdrouter.attempt", Value: int64(x.Sum.Attempts)}, {Key: "pdrouter.engine_request_id", Value: a.h.Request}}
	if a.split {
		attributes = append(attributes, trace.Attribute{Key: "pdrouter.transfer_id", Value: a.h.Transfer})
	}
	if u, err := url.Parse(l.Engine.Origin.Entry.URL); err == nil {
		attributes = append(attributes, trace.Attribute{Key: "server.address", Value: u.Hostname()})
		if port, err := strconv.ParseInt(u.Port(), 10, 32); err == nil {
			attributes = append(attributes, trace.Attribute{Key: "server.port", Value: port})
		}
	}
	t.Begin(l, role, trace.Client, time.Now(), attributes...)
}

// traceAnswer notes what has come of a leg. Of one that failed noteFailure does.
func (x *Exchange) traceAnswer(m envelope) {
	t := x.trace()
	if t == nil || m.a == nil {
		return
	}
	switch m.e.Kind {
	case dispatch.EvPrefillFirst:
		t.Event(&m.a.prefill, "first token", m.at)
		fallthrough
	case dispatch.EvPrefillUsable:
		t.End(&m.a.prefill, m.at, "", tokensOf(&m.a.prefill)...)
	case dispatch.EvDecodeFirst:
		t.Event(&m.a.decode, "first token", m.at)
	case dispatch.EvDecodeWhole:
		t.End(&m.a.decode, m.at, "", tokensOf(&m.a.decode)...)
	}
}

// tokensOf are the tokens of a whole answer, as its engine has counted them.
func tokensOf(l *leg.Leg) (attributes []trace.Attribute) {
	if l.Answer.HasUsage {
		attributes = append(attributes, trace.Attribute{Key: trace.InputTokens, Value: int64(l.Answer.PromptTokens)},
			trace.Attribute{Key: trace.OutputTokens, Value: int64(l.Answer.CompletionTokens)})
	}
	if l.Answer.SaysCached() {
		attributes = append(attributes, trace.Attribute{Key: trace.CachedTokens, Value: int64(l.Answer.Cached())})
	}
	return attributes
}

// traceRetry ends what is left of an attempt that another one follows.
func (x *Exchange) traceRetry(a *attempt) {
	if t := x.trace(); t != nil && a != nil {
		now := time.Now()
		t.End(&a.prefill, now, "")
		t.End(&a.decode, now, "")
	}
}
