package router

import (
	"net/http"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/report"
	"pdrouter/router/stored"
)

// remember notes which engine holds the response that is about to be sent, if it keeps it.
func (x *exchange) remember(a *attempt) {
	if x.b.Shape != openai.ShapeResponses || x.b.Passthrough != nil || x.b.Unkept || x.s.responses == nil {
		return
	}
	value := stored.Holder{Engine: a.decode.Engine.Name, Model: x.b.Model, Owner: stored.Owner(x.tenant, x.sum.Subject)}.Value()
	x.kept = openai.ResponsePrefix + a.h.Request
	x.s.responses.Put(x.kept, value, x.s.cfg.Timeouts.Stored)
}

// settled holds back the end of an answer that an engine keeps, until whatever gateway the client asks next can know where.
func (x *exchange) settled() {
	if x.kept != "" {
		x.s.responses.Await(x.kept)
		x.kept = ""
	}
}

// keeper returns the id that the response has if decode keeps it, and decode; nil if no decode engine was chosen.
func (x *exchange) keeper() (id string, e *fleet.Engine) {
	if x.cur == nil {
		return "", nil
	}
	return openai.ResponsePrefix + x.cur.h.Request, x.cur.decode.Engine
}

// worksOn reports whether the engine may still work on the background response of a request that has ended.
func (x *exchange) worksOn() bool {
	if x.cur == nil || x.cur.decode.State() == dispatch.LegIdle {
		return false
	}
	switch x.sum.Outcome {
	case report.Completed:
		if x.sum.Stream || x.sum.Status != http.StatusOK {
			return false
		}
		_, works := stored.ReadState(x.reply.body)
		return works
	case report.ClientLeft, report.FailedAfter:
		return x.reply.stream == nil || !x.reply.stream.Whole()
	case report.FailedBefore: // for a reason of the gateway's own, of which the engine does not know
		return failedAtWork(x.why)
	}
	return false
}

// toldOf is what the answer says of the response that was asked for: whether its engine still works on it, and if not, the tokens that it has
// used, or -1 if they are unknown.
func (x *exchange) toldOf() (tokens int, works bool) {
	if s := x.reply.stream; s != nil {
		if x.usage.Counted {
			return x.sum.PromptTokens + x.sum.OutputTokens, !s.Whole()
		}
		return -1, !s.Whole()
	}
	if x.sum.Status == http.StatusOK {
		return stored.ReadState(x.reply.body)
	}
	return -1, true
}
