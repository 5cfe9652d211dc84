package exchange

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

// Snapshot is what a request is served by, from its admission to its end. It is never changed.
type Snapshot struct {
	Config    *config.Config
	Fleet     *fleet.Fleet
	Planner   fleet.Planner
	Tickets   kvtransfer.Signer      // signs the ticket of each transfer; nil: legs carry none
	Token     func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	Reclaim   *reclaim.Snapshot
	Responses stored.Responses     // nil: it is not recorded which engine keeps a response
	Observe   func(report.Summary) // may be nil
}

// Caller is who has an exchange serve a request.
type Caller interface {
	// Ended is called once, when the request has its outcome. What the exchange says of that does not change any more.
	Ended(x *Exchange)
}

// Request is what an exchange serves.
type Request struct {
	Snapshot *Snapshot
	Model    *fleet.Model
	Adapter  string // of the model, if the client names one
	Body     *openai.Body
	ID       string        // the client's request id, or one made here
	Path     string        // what engines are asked for
	Pattern  string        // the route, for reports
	Subject  string        // who asks
	Tenant   string        // whose the response is, if an engine keeps it
	Retried  bool          // the client says that it has asked before
	Pin      *fleet.Engine // the only one that can serve it; nil if there may be others

	Forwarded *leg.Forwarded

	Arrived time.Time
	Checked time.Duration // from its arrival to the beginning of its wait, if it waited
	Queued  time.Duration // from its arrival to the end of its wait; 0 if it did not wait
	Caller  Caller        // nil: its end is not reported
	Branch  bool          // it is a part of a client's request, which its caller reports
}
