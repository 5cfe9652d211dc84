package router

import (
	"time"

	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
	"pdrouter/router/report"
	"pdrouter/router/stored"
)

// exchangeSnapshot is what a request is served by, from its admission to its end. It is never changed.
type exchangeSnapshot struct {
	cfg       *config.Config
	fleet     *fleet.Fleet
	planner   fleet.Planner
	tickets   kvtransfer.Enroller    // signs both legs' tickets; nil: legs carry none
	token     func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	reclaim   *reclaim.Snapshot
	responses stored.Responses     // nil: nobody is told who keeps a response
	observe   func(report.Summary) // may be nil
}

// caller is who has an exchange serve a request.
type caller interface {
	// ended is called once, when the request has its outcome. What the exchange says of that does not change any more.
	ended(x *exchange)
}

// request is what an exchange serves.
type request struct {
	with    *exchangeSnapshot
	m       *fleet.Model
	adapter string // of the model, if the client names one
	b       *openai.Body
	id      string        // the client's request id, or one made here
	path    string        // what engines are asked for
	pattern string        // the route, for reports
	subject string        // who asks
	tenant  string        // whose the response is, if an engine keeps it
	again   bool          // the client says that it has asked before
	pin     *fleet.Engine // the only one that can serve it; nil if there may be others

	forwarded *leg.Forwarded

	arrived time.Time
	checked time.Duration // from its arrival to the beginning of its wait, if it waited
	queued  time.Duration // from its arrival to the end of its wait; 0 if it did not wait
	caller  caller        // nil: nobody is told of its end
	branch  bool          // it is a part of a client's request, which its caller reports
}
