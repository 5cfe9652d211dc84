// Package exchange serves one proxied request, from its admission to the end of its legs. An Exchange is the only driver of the state machine
// in package dispatch: each event makes one step (advance), each action of the step is done (perform). It knows no route, no limiter and no
// queue: the edge or a fan-out, its Caller, begins it, runs it, sends its Reply, and is told of its end. KV that a request leaves with an
// engine is handed to package reclaim.
//
// Read exchange.go first, then exchanges.go for what a request comes with and what all of them share, perform.go for what each action does,
// mailbox.go for events from other goroutines, plan.go for how engines are chosen, attempt_begin.go for how they are asked, stream_relay.go for a
// streamed answer, attempt_end.go for how legs end, transfer.go for KV that does not come and for the end of a request without a client.
package exchange

import (
	"context"
	"net"
	"runtime/debug"
	"time"

	"pdrouter/internal/disconnect"
	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/leg"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/report"
)

// Exchange is one proxied request. It owns the request's dispatch: it turns what its legs, its client and its timers do into events, and
// actions into I/O.
//
// One goroutine at a time is its owner, and only the owner changes it: first the goroutine that serves the client's connection (Run,
// then WriteTo if the answer is a stream), then, if the request has its outcome and its legs must go on, one in the background (drain).
// Each of these takes one event after the other (advance). Legs run on goroutines of their own: decode's until the first event of a stream is
// here, the others until the whole answer is. What they, timers and the client have to say comes in through the mailbox.
//
// Others may read what never changes: what the request is served with (served, but for excluded), what Begin writes into Sum for good (who asks,
// for what, when), and, from Ended on, Reply, Sum and Why.
type Exchange struct {
	served           // what the request is served with, and how its legs are ended
	mailbox          // what others have to say
	tenant    string // whose the response is, if an engine keeps it
	recording string // the response whose engine is being recorded for all gateways; "" if none is
	caller    Caller
	liveIndex int32 // in the set of live requests
	branch    bool  // of a client's request, which its caller reports

	// What the caller may read, after Run and in Ended. All of it is fixed from Ended on, but for Sum.Transfer and
	// Sum.Phases.Transfer, which the report adds.
	HasOutcome bool           // there is an outcome
	Why        reason.Reason  // of the end of a request that failed
	Reply      Reply          // what the client is to get
	Sum        report.Summary // status, engines and reason are right as soon as there is a reply

	d             dispatch.Dispatch
	cur           *attempt
	acts          []dispatch.Action
	ownEvents     []dispatch.Event    // of the owner's own making, oldest first
	pause         time.Duration       // before engines are chosen again; 0 if it need not wait
	due           time.Time           // the deadline of what comes before the first token
	turn          *turn               // of a conversation that is kept to be moved; nil: it is not
	continuation  *relay.Continuation // what another engine would need to go on with the stream; nil if none may
	last          reason.Reason       // of the last attempt that failed
	failed        dispatch.EventKind  // the event that it failed by
	waits         uint16              // how often it went back to engines that had failed it
	noHandOff     bool                // prefill has answered and handed nothing off
	drains        bool                // it has a place in the background to drain in
	uncontinued   bool                // the policy wants another engine to go on with the stream, and none could
	withoutTokens bool                // an engine may have refused the prompt's token ids, so no other is asked for them or sent them
	doubted       *fleet.Engine       // that engine; nil if none has
	waitsUntil    time.Time           // when the request has waited for engines for long enough; zero if it does not wait for any

	usage relay.Usage

	client ClientWriter // of a stream
	idle   idle

	choice    policies.Choice
	selection fleet.Selection

	deadlineTimer *time.Timer
	clientWatch   disconnect.Watch

	drainEnd context.Context // when draining ends at the latest; nil before

	ownRoom [2]dispatch.Event
	actRoom [8]dispatch.Action
}

// WatchClient has the request end when its client leaves. It watches the socket below conn, while nothing reads from it.
func (x *Exchange) WatchClient(conn net.Conn) {
	x.clientWatch, _ = x.all.Disconnects.Watch(conn, func() { x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft}}) })
}

// Cancel has the request end, as it is a part of one that has its outcome.
func (x *Exchange) Cancel() {
	x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvCanceled, Why: reason.Branch}})
}

// Run brings the request to its outcome, or to the point where its stream can be relayed.
func (x *Exchange) Run() {
	defer func() {
		if v := recover(); v != nil {
			x.Panicked(v)
		}
		x.drainOn()
	}()
	first := dispatch.Event{Kind: dispatch.EvStart}
	if m, ok := x.take(); ok { // the client has left already, or the gateway stops: no engine is asked
		first = m.e
	}
	x.step(first)
	for !x.HasOutcome && !x.d.State.Streams() && len(x.ownEvents) > 0 { // until its legs have begun, or it waits
		x.advance()
	}
	if !x.HasOutcome && x.caller != nil {
		x.caller.Begun()
	}
	for !x.HasOutcome && !x.d.State.Streams() {
		x.advance()
	}
}

// drainOn has a request that drains go on in the background, in the place that DoDrain has reserved. Its owner must not touch it afterwards.
func (x *Exchange) drainOn() {
	if x.drains {
		x.all.Tasks.GoReserved(x.s.Config.Timeouts.Prefill+x.s.Config.Timeouts.Cleanup, x.drain)
	}
}

// drain continues a request that has its outcome and its summary until ending its legs leaks no KV.
func (x *Exchange) drain(ctx context.Context) {
	defer func() {
		x.cur.letGo()
		x.restrict(acceptsNone, nil)
		x.b.Release()
	}()
	if x.d.Mode == dispatch.InTurn && x.d.Prefill == dispatch.LegAsked { // prefill holds nothing for decode yet, unless it finishes within this time
		soon, cancel := context.WithTimeout(ctx, drainGrace)
		defer cancel()
		ctx = soon
	}
	x.drainEnd = ctx
	x.hurry(x.cur)
	for x.d.State != dispatch.StDone {
		x.advance()
	}
}

// Panicked ends a request whose handling panicked; others go on. One that has its outcome already is left as it is: it may have another
// owner, which drains it.
func (x *Exchange) Panicked(v any) {
	x.all.Log.Error("panic in a request", "request_id", x.Sum.RequestID, "panic", v, "stack", string(debug.Stack()))
	if x.HasOutcome {
		return
	}
	x.step(dispatch.Event{Kind: dispatch.EvPanic, Why: reason.Panic})
	if x.HasOutcome {
		return
	}
	// The panic came between the dispatch's outcome and what was to be done about it.
	e, outcome := x.failure(reason.Panic), dispatch.FailedBefore
	x.Reply = Reply{Err: e, Stream: x.Reply.Stream}
	if x.Reply.Stream != nil {
		x.Reply.Stream.Cut(e)
		outcome = dispatch.FailedAfter
	} else {
		x.Sum.Status = int32(e.Status)
	}
	x.done(dispatch.Action{Do: dispatch.DoDone, Why: reason.Panic, Outcome: outcome})
}

// advance handles one event, or waits until there may be one. Nothing that happens after a stream's terminal event changes its end.
func (x *Exchange) advance() {
	if len(x.ownEvents) > 0 {
		e := x.ownEvents[0]
		x.ownEvents = append(x.ownEvents[:0], x.ownEvents[1:]...)
		x.step(e)
	} else if x.d.State == dispatch.StRelaying && x.Reply.Stream.Whole() {
		x.stepStream()
	} else if m, ok := x.take(); ok {
		x.step(x.takeEnvelope(m))
	} else {
		x.wait()
	}
}

// wait blocks on what the request's state waits for besides events.
func (x *Exchange) wait() {
	switch {
	case x.d.State == dispatch.StWaiting && x.awaitsMove():
		x.awaitMove()
	case x.d.State == dispatch.StWaiting:
		x.pauseForEngines()
	case x.d.State == dispatch.StPairing && x.cur.parked:
		x.awaitPair(x.cur)
	case x.d.State == dispatch.StRelaying:
		x.stepStream()
	case x.d.State == dispatch.StJoining, x.d.State == dispatch.StContinuing:
		x.awaitContinuation()
	case x.d.State == dispatch.StDraining:
		select {
		case <-x.wake:
		case <-x.drainEnd.Done():
			x.postOwn(dispatch.Event{Kind: dispatch.EvDeadline, Why: reason.Deadline})
		}
	default:
		<-x.wake
	}
}

// postOwn queues an event that the owner itself makes. Others deliver theirs to the mailbox.
func (x *Exchange) postOwn(e dispatch.Event) { x.ownEvents = append(x.ownEvents, e) }

func (x *Exchange) step(e dispatch.Event) {
	x.acts = x.d.Step(e, x.acts[:0])
	for _, a := range x.acts {
		x.perform(a, e)
	}
}

// takeEnvelope takes over what comes with an event from another goroutine, and returns the event for the dispatch.
func (x *Exchange) takeEnvelope(m envelope) dispatch.Event {
	e := m.e
	x.traceAnswer(m)
	if e.Kind.OfDecode() {
		m.a.decodeArrived()
	}
	if e.Kind == dispatch.EvTransferLost {
		m.a.prefill.Failure = errRunOver
		if e.Why == reason.TransferTimeout {
			m.a.prefill.Failure = leg.ErrTransferLate
			if m.a.pair != nil {
				x.observeTransfer(m.a, false)
			}
		}
	}
	switch {
	case x.HasOutcome:
	case e.Kind == dispatch.EvPrefillUsable, e.Kind == dispatch.EvPrefillFirst:
		x.Sum.Phases.Prefill = m.at.Sub(x.Sum.Arrived)
		x.noteFirst(m.a.tokens)
		if e.Kind == dispatch.EvPrefillFirst {
			return x.takeFirst(m)
		}
	case m.a == nil || m.a.decodeIs != withOwner:
	case x.d.State == dispatch.StJoining && e.Kind == dispatch.EvDecodeFirst:
		return x.joinFirst(m)
	case x.d.State == dispatch.StContinuing && e.Kind == dispatch.EvDecodeFirst:
		return x.resume(m)
	case e.Kind == dispatch.EvDecodeFirst || e.Kind == dispatch.EvDecodeWhole:
		return x.takeAnswer(m)
	}
	return e
}

// takeAnswer takes over decode's answer from its leg.
func (x *Exchange) takeAnswer(m envelope) dispatch.Event {
	x.Sum.Stream = m.e.Kind == dispatch.EvDecodeFirst // where the request does not tell
	if s := m.a.stream; s != nil {
		if x.turn != nil {
			x.turn.prompt, x.turn.answer = nil, nil // an attempt before may have had some
			s.Change = x.turn.event
		}
		if m.a.stream = nil; !s.Begin(x.continuation) {
			return x.refuseStream(m)
		}
		x.Reply.Stream = s
	}
	x.Sum.Phases.FirstToken = m.at.Sub(x.Sum.Arrived)
	x.estimateParts(m.a) // before anything is learned from this token
	x.observeTTFT()
	x.observeDecodeFirst(m.a, m.at)
	x.remember(m.a) // does nothing but for /v1/responses
	return m.e
}

// refuseStream ends decode's leg, as the beginning of its stream must not reach the client.
func (x *Exchange) refuseStream(m envelope) dispatch.Event {
	m.a.decode.End()
	x.s.Fleet.Failed(m.a.decode.Engine, health.AnswerFailed, m.at)
	return leg.InvalidResponse.DecodeEvent(true)
}

// makeCurrent has an attempt take the place of the one before it: of all legs, only the events of its own are accepted from now on.
func (x *Exchange) makeCurrent(a *attempt) {
	x.traceRetry(x.cur)
	x.cur = a
	x.acceptOnly(a)
	x.Sum.Attempts++
}
