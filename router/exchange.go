package router

import (
	"net"
	"sync"
	"time"

	"pdrouter/internal/disconnect"
	"pdrouter/policies"
	"pdrouter/router/admission"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/report"
	"pdrouter/router/upstream"
)

// exchange owns the dispatch of one request: it turns what its legs, its client and its timers do into events, and
// actions into I/O. It runs on the goroutine that serves the client's connection. Each leg runs on a goroutine of its own until
// its answer begins, so that the owner can react to other events while a leg waits for its engine.
type exchange struct {
	legs
	lease  Lease          // of the caller's limits; nil if there are none
	slot   admission.Slot // its place with the engines, until its end
	tenant string         // whose the response is, if an engine keeps it
	kept   string         // what was put about that, as long as others may not know
	reply  reply
	fan    *fan // whose branch it is; nil if it is a request of its own
	sum    report.Summary

	d        dispatch.Dispatch
	acts     []dispatch.Action
	queue    []dispatch.Event   // of the owner's own making, oldest first
	rests    int                // how often it went back to engines that had failed it
	pause    time.Duration      // before engines are chosen again; 0 if it need not wait
	due      time.Time          // the deadline of what comes before the gate
	noOnward string             // why there is none, though the policy wants it
	onward   *onward            // what another engine would need to go on with the stream; nil if none may
	last     reason.Reason      // of the last attempt that failed
	failed   dispatch.EventKind // the event that it failed by
	why      reason.Reason      // of the end of a request that failed
	bare     bool               // prefill has answered and handed nothing off
	until    time.Time          // when the request has waited for engines for long enough; zero if it does not wait for any

	counted bool // the engine has counted the tokens of the answer
	pieces  int  // events with data that were relayed, a token each or more

	choice policies.Choice
	look   look

	timer *time.Timer
	watch disconnect.Watch

	prev, next *exchange // in the router's live list

	mu        sync.Mutex
	cur       *attempt           // written by the owner alone, which reads it without mu
	mails     []mail             // none of them of an attempt before cur
	interrupt *upstream.Canceler // of what the owner is blocked on; nil if it is not
	heir      *afterlife         // has cur from now on; nil if nobody has
	over      bool               // there is an outcome
	wake      chan struct{}

	mailRoom  [3]mail
	queueRoom [2]dispatch.Event
	actRoom   [8]dispatch.Action
}

// reply is what the handler sends.
type reply struct {
	err    *openai.Error // an error of the router's own
	status int           // else: an engine's
	ctype  string
	meta   string // what the engine says of a body of bytes
	body   []byte
	stream *stream // else: a stream
}

// newExchange begins to serve a request that was admitted.
func (r *Router) newExchange(q *admitted) *exchange {
	s, m, b, arrived, now := q.s, q.m, q.b, q.arrived, time.Now()
	x := &exchange{d: connector.NewDispatch(m.conn, s.cfg.Limits.Attempts), wake: make(chan struct{}, 1)}
	x.legs = legs{r: r, s: s, m: m, b: b, path: q.enginePath(), forwarded: q.forwarded}
	b.Retain() // until the exchange is done
	x.slot, q.slot = q.slot, admission.Slot{}
	q.x, x.lease, x.fan = x, q.lease, q.fan
	x.mails, x.queue, x.acts = x.mailRoom[:0], x.queueRoom[:0], x.actRoom[:0]
	x.sum = report.Summary{
		RequestID: q.id, Subject: q.who.Subject, Model: m.name, Route: q.route.String(), Stream: b.Stream, Removed: b.Removed, Arrived: arrived,
	}
	x.sum.Phases.Admit = now.Sub(arrived)
	limit := s.cfg.Timeouts.Request
	if !b.Stream { // its first token comes with its last
		limit = s.cfg.Timeouts.Answer
	}
	x.due = arrived.Add(limit)
	m.retries.Started(arrived, q.again)
	if q.queued > 0 {
		x.sum.Phases.Admit, x.sum.Phases.Queue = q.checked, q.queued
	}
	x.timer = time.AfterFunc(x.due.Sub(now), func() {
		x.post(mail{e: dispatch.Event{Kind: dispatch.EvDeadline, Why: reason.Deadline}})
	})
	x.look.f, x.look.m, x.look.pin, x.look.adapter = s.fleet, m, q.pin, q.adapter
	x.look.shape = b.Shape
	x.tenant = q.who.Tenant
	r.live.add(x)
	return x
}

// watchClient has the request end when its client leaves.
func (x *exchange) watchClient(conn net.Conn) {
	x.watch, _ = x.r.clients.Watch(conn, func() { x.post(mail{e: dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft}}) })
}

// run brings the request to its outcome, or to the point where its stream can be relayed.
func (x *exchange) run() {
	defer func() {
		if v := recover(); v != nil {
			x.panicked(v)
		}
	}()
	x.step(dispatch.Event{Kind: dispatch.EvStart})
	for x.d.State != dispatch.StDone && x.d.State != dispatch.StRelaying {
		x.step(x.nextEvent())
	}
}

// panicked ends a request whose handling panicked; others go on.
func (x *exchange) panicked(v any) {
	x.r.log.Error("panic in a request", "request_id", x.sum.RequestID, "panic", v, "stack", stack())
	x.step(dispatch.Event{Kind: dispatch.EvPanic, Why: reason.Panic})
	if !x.over { // it had its outcome, and what has panicked was to report it
		x.reply = reply{err: x.failure(reason.Panic)}
		x.sum.Status = x.reply.err.Status
		x.done(dispatch.Action{Do: dispatch.DoDone, Why: reason.Panic, Outcome: dispatch.FailedBefore})
	}
}

func (x *exchange) step(e dispatch.Event) {
	x.acts = x.d.Step(e, x.acts[:0])
	for _, a := range x.acts {
		x.perform(a, e)
	}
}

// took reads what there is behind a leg's event, and returns what that makes of it.
func (x *exchange) took(m mail) dispatch.Event {
	switch m.e.Kind {
	case dispatch.EvPrefillUsable:
		x.sum.Phases.Prefill = m.at.Sub(x.sum.Arrived)
	case dispatch.EvDecodeFirst, dispatch.EvDecodeWhole:
		return x.begin(m)
	}
	return m.e
}

// begin takes over decode's answer from its leg.
func (x *exchange) begin(m mail) dispatch.Event {
	x.b.Stream = m.e.Kind == dispatch.EvDecodeFirst // where the request does not tell
	x.sum.Stream = x.b.Stream
	if s := m.a.stream; s != nil {
		if m.a.stream = nil; !s.open() {
			m.a.decode.end()
			x.r.bad(m.a.decode.engine, health.AnswerFailed, m.at)
			return decodeEvent(vGarbage, true)
		}
		x.reply.stream = s
	}
	x.sum.Phases.FirstToken = m.at.Sub(x.sum.Arrived)
	x.remember(m.a)
	return m.e
}
