package exchange

import (
	"net/http"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/stored"
)

// remember notes which engine holds the response that is about to be sent, if it keeps it.
func (x *Exchange) remember(a *attempt) {
	if x.b.Shape != openai.ShapeResponses || x.b.Passthrough != nil || x.b.Unkept || x.s.Responses == nil {
		return
	}
	value := stored.Holder{Engine: a.decode.Engine.Name, Model: x.b.Model, Owner: stored.Owner(x.tenant, x.Sum.Subject)}.Value()
	x.recording = openai.ResponsePrefix + a.h.Request
	x.s.Responses.Put(x.recording, value, x.s.Config.Timeouts.ResponseAffinityTTL)
}

// awaitRecorded holds back the end of an answer that an engine keeps until every gateway can find that engine.
func (x *Exchange) awaitRecorded() {
	if x.recording != "" {
		x.s.Responses.Await(x.recording)
		x.recording = ""
	}
}

// Keeper returns the id that the response has if decode keeps it, and decode; nil if no decode engine was chosen.
func (x *Exchange) Keeper() (id string, e *fleet.Engine) {
	if x.cur == nil {
		return "", nil
	}
	return openai.ResponsePrefix + x.cur.h.Request, x.cur.decode.Engine
}

// WorksOn reports whether the engine may still work on the background response of a request that has ended.
func (x *Exchange) WorksOn() bool {
	if x.cur == nil || x.cur.decode.State() == dispatch.LegIdle {
		return false
	}
	switch x.Sum.Outcome {
	case dispatch.Completed:
		if x.Sum.Stream || x.Sum.Status != http.StatusOK {
			return false
		}
		_, works := stored.ReadState(x.Reply.Body)
		return works
	case dispatch.ClientLeft, dispatch.FailedAfter:
		return x.Reply.Stream == nil || !x.Reply.Stream.Whole()
	case dispatch.FailedBefore: // for a reason of the gateway's own that the engine does not know
		return FailedAtWork(x.Why)
	}
	return false
}

// ResponseState is what the answer says of the response that was asked for: whether its engine still works on it, and if not, the tokens that it has
// used, or -1 if they are unknown.
func (x *Exchange) ResponseState() (tokens int, works bool) {
	if s := x.Reply.Stream; s != nil {
		if x.usage.Counted {
			return int(x.Sum.PromptTokens) + int(x.Sum.OutputTokens), !s.Whole()
		}
		return -1, !s.Whole()
	}
	if x.Sum.Status == http.StatusOK {
		return stored.ReadState(x.Reply.Body)
	}
	return -1, true
}
