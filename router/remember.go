package router

import (
	"pdrouter/router/openai"
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
