package exchange

import (
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/internal/disconnect"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/migration"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/stored"
	"pdrouter/router/tokens"
	"pdrouter/router/upstream"
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
	// Begun is called at most once, before Ended, when engines have been chosen for the request and are known to have it, or when it waits for some.
	Begun()
	// Ended is called once, when the request has its outcome. What the exchange says of that does not change any more.
	Ended(x *Exchange)
}

// Request is what an exchange serves.
type Request struct {
	ServedBy *Snapshot
	Model    *fleet.Model
	Adapter  string // of the model, if the client names one
	Body     *openai.Body
	ID       string        // the client's request id, or one made here
	Path     string        // what engines are asked for
	Pattern  string        // the route, for reports
	Subject  string        // who asks
	Tenant   string        // whose the response is, if an engine keeps it
	Retried  bool          // the client says that it has asked before
	Branch   bool          // it is a part of a client's request, which its caller reports
	Session  uint64        // a hash of the name of its session; 0 if it has none, or no policy looks at sessions
	Pin      *fleet.Engine // the only one that can serve it; nil if there may be others
	Random   uint64        // the chance by which room was found for it; 0 if it needed none

	Forwarded *leg.Forwarded

	Arrived time.Time
	Checked time.Duration // from its arrival to the beginning of its wait, if it waited
	Queued  time.Duration // from its arrival to the end of its wait; 0 if it did not wait
	Waited  *string       // why it waited, for people; nil if it did not
	Caller  Caller        // nil: its end is not reported
}

// Reply is what the client is to get.
type Reply struct {
	Err         *openai.Error // an error of the router's own
	Status      int           // else: an engine's
	ContentType string
	Metadata    string // what the engine says of a body of bytes
	Body        []byte
	Stream      *relay.Stream // else: a stream
}

// Parts are what all exchanges work with.
type Parts struct {
	Log         *slog.Logger
	Disconnects *disconnect.Watcher
	Tasks       *background.Tasks // legs may outlive their requests: they end with it. Reserve takes one of limits.background places, GoReserved runs in it
	Cancels     *upstream.CancelSet
	Pairs       *fleet.Handshakes
	Monitor     *monitor.Monitor
	Reclaim     *reclaim.Reclaimer
	Transfers   *kvtransfer.Transfers
	Report      *report.Reporter
	HandOffs    *handoff.Watch   // of split requests
	Moves       *migration.Mover // keeps conversations to move them; nil: none are kept
	Tokens      *tokens.Map      // learns the token ids of prompts whose engines publish their blocks; nil: nothing is learned
}

// Exchanges is what all exchanges have in common. It is safe for concurrent use.
type Exchanges struct {
	Parts
	goroutines  *background.Pool // of legs
	legRequests leg.Requests
	streams     relay.Streams
	live        live
}

// keptGoroutines is how many idle goroutines are kept for legs: as many as requests usually are in their first steps at once.
const keptGoroutines = 64

// New returns what begins exchanges. Close must be called when none runs any more.
func New(parts Parts) *Exchanges {
	return &Exchanges{Parts: parts, goroutines: background.NewPool(keptGoroutines)}
}

// Close ends the goroutines that are kept for legs. No exchange may run.
func (all *Exchanges) Close() { all.goroutines.Close() }

// Begin begins to serve a request. Its place in the queue and its lease of limits stay with the Caller, which gives them back in Ended.
func (all *Exchanges) Begin(q *Request) *Exchange {
	s, m, b, arrived, now := q.ServedBy, q.Model, q.Body, q.Arrived, time.Now()
	x := &Exchange{d: connector.NewDispatch(m.Connector, s.Config.Limits.Attempts)}
	x.served = served{all: all, s: s, m: m, b: b, path: q.Path, forwarded: q.Forwarded}
	b.Retain() // keeps the client's bytes (edge.clientBody) until the exchange is done
	x.caller, x.branch, x.tenant = q.Caller, q.Branch, q.Tenant
	x.turn = newTurn(all, q)
	x.init()
	x.ownEvents, x.acts = x.ownRoom[:0], x.actRoom[:0]
	x.Sum = report.Summary{
		RequestID: q.ID, Subject: q.Subject, Model: m.Name, Route: q.Pattern, Stream: b.Stream, Removed: b.Removed, Arrived: arrived,
	}
	x.Sum.Phases.Admit = now.Sub(arrived)
	limit := s.Config.Timeouts.Request
	if !b.Stream { // its first token comes with its last
		limit = s.Config.Timeouts.RequestTotal
	}
	x.due = arrived.Add(limit)
	m.Retries.Started(arrived, q.Retried) // counts it for the retry budget
	if q.Queued > 0 {
		x.Sum.Phases.Admit, x.Sum.Phases.Queue, x.Sum.Waited = q.Checked, q.Queued, q.Waited
	}
	x.deadlineTimer = time.AfterFunc(x.due.Sub(now), func() {
		x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvDeadline, Why: reason.Deadline}})
	})
	x.selection.Init(s.Fleet, m, b.Shape, q.Pin, q.Adapter, q.Session)
	x.selection.SetRandom(q.Random)
	if t := x.trace(); t != nil {
		x.Sum.TraceID = new(t.ID)
	}
	if !all.live.add(x) { // the gateway stops
		x.shutDown()
	}
	return x
}
