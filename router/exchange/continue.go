package exchange

import (
	"time"

	"pdrouter/internal/gather"
	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
)

// planContinuation chooses an engine to go on with the stream that the attempt has failed at.
func (x *Exchange) planContinuation(failed *attempt, why reason.Reason) dispatch.Event {
	x.noteFailure(failed, &failed.decode, why)
	x.all.Log.Warn("a stream is to go on from another engine", "request_id", x.Sum.RequestID, "engine", failed.decode.Engine.Name,
		"reason", why.String())
	x.excluded = x.m.ExcludeRevisions(x.excluded.Add(failed.decode.Engine, failed.decode.RetryAfter), failed.decode.Engine)
	if !x.m.Retries.Retry(time.Now()) {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.RetryBudget}
	}
	x.selection.Begin(x.excluded, true)
	choice := x.selection.ChooseDecode()
	if choice.Decode < 0 || !x.continuation.Bound(x.m.Decode[choice.Decode].MaxLen()) {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.NoEngine}
	}
	a := &attempt{}
	a.h.Shape = openai.ShapeCompletions
	a.h.Draw()
	x.makeCurrent(a)
	a.decode.Join(x.all.Cancels, x.m.Decode[choice.Decode])
	x.forecastDecode(a, x.b.PromptTokens(), x.b.PromptTokens())
	return dispatch.Event{Kind: dispatch.EvPlannedAlone}
}

// askContinuation has the attempt's engine go on from the tokens that the client has, on a goroutine of its own.
func (x *Exchange) askContinuation(a *attempt) {
	o := x.continuation
	o.Restart()
	x.traceLeg(a, &a.decode, "decode")
	m := x.all.legRequests.New(&a.decode, openai.PathCompletions, a.h.Request, x.forwarded, true)
	m.WriteBy(func(dst []byte, gaps *gather.Gaps) []byte { return o.Body(dst, gaps, x.b.CacheSalt(), nil) })
	a.transferTimer = a.decode.CancelAfter(x.s.Config.Timeouts.Request, leg.ErrLate)
	x.startDecode(a, m)
}

// newContinuation returns what another engine needs to continue the stream after a failure; nil if the policy wants no continuation, or none is
// possible.
func (x *Exchange) newContinuation() *relay.Continuation {
	p, ok := x.s.Planner.(interface{ AfterFailure(model string) string })
	if !ok || x.branch || !x.b.Stream {
		return nil
	}
	after := p.AfterFailure(x.m.Name)
	if after == policies.Cut {
		return nil
	}
	if x.m.Connector.Traits().RequiresSplit { // the engine that goes on serves alone
		x.uncontinued = true
		return nil
	}
	c, ok := openai.ContinuationOf(x.b)
	if !ok || after == policies.Continue && !c.Greedy {
		x.uncontinued = true
		return nil
	}
	return relay.NewContinuation(c, x.b.Shape == openai.ShapeChat, true)
}
