package exchange

import (
	"context"
	"runtime/debug"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
)

// startPrefill runs the prefill leg on a goroutine of its own.
func (x *Exchange) startPrefill(a *attempt) {
	x.Sum.Phases.Pair = time.Since(x.Sum.Arrived)
	a.prefill.Join(x.r.Cancels, a.prefill.Engine)
	a.prefillTimer = a.prefill.CancelAfter(x.s.Config.Timeouts.Prefill, leg.ErrLate)
	req := x.prefillRequest(&a.prefill, &a.h).Retain(x.b)
	a.prefill.Begin()
	x.r.Tasks.Add(1)
	x.r.goroutines.Go(func() { x.askPrefill(a, req) })
}

// startDecode runs the decode leg on a goroutine of its own.
func (x *Exchange) startDecode(a *attempt, req *leg.Request) {
	req.Retain(x.b)
	a.decodeIs = withAsker
	a.decode.Begin()
	x.r.Tasks.Add(1)
	x.r.goroutines.Go(func() { x.askDecode(a, req) })
}

// askForDecode asks the attempt's decode engine for the whole answer.
func (x *Exchange) askForDecode(a *attempt) {
	x.continuation = x.newContinuation()
	x.startDecode(a, x.decodeRequest(a, x.continuation != nil))
}

// askPrefill asks the prefill leg and sends the owner what came of it. It may outlive the exchange.
func (x *Exchange) askPrefill(a *attempt, req *leg.Request) {
	defer x.r.Tasks.Done()
	l := &a.prefill
	defer l.End()
	defer req.Release() // what it holds may have to be sent again
	e := dispatch.Event{Kind: dispatch.EvPrefillLost, Why: reason.Panic}
	defer func() {
		if v := recover(); v != nil {
			x.r.Log.Error("panic in a leg", "panic", v, "stack", string(debug.Stack()))
		}
		if m := a.prefillEnded(e); m != nil {
			m.Body, m.Again = x.b, x.prefillRequest(l, &m.Handoff)
			x.r.Reclaim.Start(m, func(ctx context.Context) { x.r.Reclaim.FreeDecode(ctx, m) }, a.decode.Engine)
		}
		x.enqueue(envelope{a: a, e: e, at: time.Now()})
	}()
	e = x.prefillAnswer(a, req)
}

// prefillAnswer asks, and says what the answer means.
func (x *Exchange) prefillAnswer(a *attempt, req *leg.Request) dispatch.Event {
	r, conn, l := x.r, x.m.Connector, &a.prefill
	v := l.AskWhole(&req.Request, x.s.Config.Limits.Answer)
	a.prefillTimer.Stop()
	l.Observe(x.s.Fleet, v)
	l.ObservePeer(x.s.Fleet, conn, &a.decode, v)
	if v != leg.Usable {
		e := v.PrefillEvent()
		if v == leg.Broken && l.RefusedCredentials() {
			e.Why = reason.CredentialsRefused
		}
		return e
	}
	e := dispatch.Event{Kind: dispatch.EvPrefillBare, Why: reason.NoTransferParams}
	if conn.Traits().Meets || l.Answer.KVParams != nil {
		e.Kind = conn.Accept(&a.h, l.Answer.KVParams)
	}
	l.ObserveHandOff(x.s.Fleet, conn, a.h.Shape, e.Kind)
	switch e.Kind {
	case dispatch.EvPrefillUsable:
		e.Why = reason.None
		if conn.Traits().Mode == dispatch.InTurn {
			r.Monitor.ObserveRun(l.Engine, l.Answer.KVParams)
		}
	case dispatch.EvPrefillMoved:
		e.Why = reason.EngineRestarted
		if c, ok := connector.ParseEndpoint(l.Answer.KVParams); ok {
			r.Monitor.Moved(l.Engine, a.h.Endpoint, c)
		}
	}
	return e
}

// askDecode asks the decode leg and reads until its first event, or its whole answer, is here. It sends the owner what came of it, and
// may outlive the exchange.
func (x *Exchange) askDecode(a *attempt, req *leg.Request) {
	defer x.r.Tasks.Done()
	v, streams, l := leg.Lost, false, &a.decode
	defer func() {
		if p := recover(); p != nil {
			x.r.Log.Error("panic in a leg", "panic", p, "stack", string(debug.Stack()))
			v = leg.Lost
		}
		x.decodeAnswered(a, v, streams)
	}()
	v, streams = x.decodeAnswer(a, req)
	x.observeDecode(a, v)
	l.ObservePeer(x.s.Fleet, x.m.Connector, &a.prefill, v)
}

// decodeAnswered sends the owner what came of the decode leg, and with it the leg if it is an open stream.
func (x *Exchange) decodeAnswered(a *attempt, v leg.Result, streams bool) {
	l, e := &a.decode, v.DecodeEvent(streams)
	switch {
	case e.Why == reason.DecodeRejected && x.b.Passthrough != nil:
		e.Why = reason.EngineRejected
	case v == leg.Broken && l.RefusedCredentials():
		e.Why = reason.CredentialsRefused
	}
	l.PromptRead()
	if e.Kind == dispatch.EvDecodeFirst {
		l.Streams = true
		l.Engine.Streaming.Add(1)
	} else {
		a.release()
	}
	l.SetKV(leg.KVDone)
	l.Became(e.Kind.Leaves())
	if !x.enqueue(envelope{a: a, e: e, at: time.Now()}) {
		a.release()
	}
}

// decodeAnswer asks, and says what came and whether it is a stream.
func (x *Exchange) decodeAnswer(a *attempt, req *leg.Request) (v leg.Result, streams bool) {
	l, pass := &a.decode, x.b.Passthrough != nil
	streams = !a.unstreamed
	v = func() leg.Result {
		defer req.Release()
		return l.Send(&req.Request, x.s.Config.Limits.Answer)
	}()
	if v != leg.Usable {
		return v, streams
	}
	if pass { // the request does not tell
		streams = openai.IsEventStream(l.ContentType)
	}
	if !streams {
		return l.ReadAnswer(x.s.Config.Limits.Answer, pass), false
	}
	a.stream = x.newStream(a)
	v = a.stream.ReadFirst(a.h.Shape)
	if x.m.Connector.Traits().BareErrors {
		v = l.RejectedInStream(v)
	}
	return v, true
}

// newStream returns the stream of decode's answer.
func (x *Exchange) newStream(a *attempt) *relay.Stream {
	return x.r.streams.New(&a.decode, a.prefillCached(), x.b.Shape, x.s.Config.Limits.Event, &x.usage)
}

// prefillRequest writes the request of a prefill leg.
func (g *attemptContext) prefillRequest(to *leg.Leg, h *connector.Handoff) *leg.Request {
	m := g.r.legRequests.New(to, g.path, h.Request, g.forwarded, false)
	m.Members = g.m.Connector.PrefillMembers(m.Members[:0], h)
	l := openai.VariantPrefill
	if g.m.Connector.Traits().RequiresSplit {
		l = openai.VariantPrefillMirrored
	}
	m.Write(g.b, l, h.Request, m.Members)
	m.Once = g.m.Connector.Traits().Stock != nil // as decode's
	return m
}

// decodeRequest writes the decode leg's request. tokens has the engine say which tokens it makes.
func (g *attemptContext) decodeRequest(a *attempt, tokens bool) *leg.Request {
	m := g.r.legRequests.New(&a.decode, g.path, a.h.Request, g.forwarded, g.b.Stream)
	m.Members = m.Members[:0]
	if tokens {
		m.Members = append(m.Members, `"return_token_ids":true`...)
	}
	if a.split {
		if tokens {
			m.Members = append(m.Members, ',')
		}
		m.Members = g.m.Connector.DecodeMembers(m.Members, &a.h)
	}
	m.Write(g.b, openai.VariantDecode, a.h.Request, m.Members)
	if g.b.Passthrough != nil {
		leg.Passthrough(g.b.Passthrough, m)
	}
	m.Once = a.split && g.m.Connector.Traits().Stock != nil // two under one id: the second may stay held, or end the engine
	return m
}
