package exchange

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/upstream"
)

// pair readies the attempt's pair, or has the owner wait for it.
func (x *Exchange) pair(a *attempt) {
	t := x.m.Connector.Traits()
	if t.Meets {
		a.h.Bootstrap = a.prefill.Engine.Bootstrap.Draw()
	}
	if t.Publishes {
		var ok bool
		if a.h.Prefill, a.h.Decode, ok = x.s.Fleet.Incarnations(a.prefill.Engine, a.decode.Engine); !ok {
			a.prefill.Failure = fleet.ErrNoRecords
			x.postOwn(dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.NoPair})
			return
		}
		a.h.ValidMS = x.s.Config.Timeouts.Request.Milliseconds()
		x.all.Transfers.Sign(x.s.Tickets, &a.h, kvtransfer.ContextOf(x.m.Name, x.Sum.Subject, x.b.CacheSalt()))
		x.all.Report.Transfers.Open(a.h.Transfer, a.prefill.Engine.Name, a.decode.Engine.Name, x.s.Fleet.Size(a.decode.Engine))
		a.landed = x.all.landed(a.h.Transfer, a.decode.Engine)
	}
	// Legs that follow each other need no handshake before prefill is asked.
	if t.Handshakes && t.Mode == dispatch.Together && (!x.all.Pairs.Ready(a.runs()) || !x.setEndpoint(a)) {
		a.parked = true
		return
	}
	x.postOwn(dispatch.Event{Kind: dispatch.EvPaired})
}

// setEndpoint notes where decode finds prefill. It reports false if that is not known: prefill has restarted and no handshake has told it since.
func (x *Exchange) setEndpoint(a *attempt) bool {
	if a.prefill.Engine.Publishes {
		return true
	}
	a.h.Endpoint = a.prefill.Engine.Endpoint.Load()
	return a.h.Endpoint != nil
}

// awaitPair waits for the pair's handshake, unless there is an event.
func (x *Exchange) awaitPair(a *attempt) {
	waiting := new(upstream.Canceler)
	x.all.Cancels.Add(waiting)
	defer waiting.Remove()
	if !x.armInterrupt(waiting) {
		return
	}
	defer x.disarmInterrupt()
	a.parked = false
	timeout, stop := context.WithTimeout(waiting, x.s.Config.Timeouts.Pair)
	defer stop()
	began := time.Now()
	err := x.all.Pairs.Wait(timeout, a.runs())
	x.trace().Add("handshake", began, time.Now())
	if err == nil && x.setEndpoint(a) {
		x.deliver(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPaired}})
		return
	}
	if !errors.Is(err, context.Canceled) {
		x.all.Log.Warn("pair", "prefill", a.prefill.Engine.Name, "decode", a.decode.Engine.Name, "err", err)
	}
	a.prefill.Failure = err
	x.deliver(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.PairFailed}})
}

// startPrefill runs the prefill leg on a goroutine of its own.
func (x *Exchange) startPrefill(a *attempt) {
	x.Sum.Phases.Pair = time.Since(x.Sum.Arrived)
	a.prefill.Join(x.all.Cancels, a.prefill.Engine)
	x.forecastPrefill(a)
	a.prefillTimer = a.prefill.CancelAfter(x.s.Config.Timeouts.Prefill, leg.ErrLate)
	x.traceLeg(a, &a.prefill, "prefill")
	req := x.prefillRequest(&a.prefill, &a.h, a.tokens.asks()).Retain(x.b)
	a.prefill.Begin()
	x.all.Tasks.Add(1)
	x.all.goroutines.Go(func() { x.askPrefill(a, req) })
}

// startDecode runs the decode leg on a goroutine of its own.
func (x *Exchange) startDecode(a *attempt, req *leg.Request) {
	req.Retain(x.b) // its body refers to the client's bytes, until askDecode releases it
	a.decodeIs = withAsker
	a.decode.Begin()
	x.all.Tasks.Add(1)
	x.all.goroutines.Go(func() { x.askDecode(a, req) })
}

// askForDecode asks the attempt's decode engine for the whole answer.
func (x *Exchange) askForDecode(a *attempt) {
	x.continuation = x.newContinuation() // nil unless the policy lets another engine continue a stream that fails
	x.traceLeg(a, &a.decode, "decode")
	x.startDecode(a, x.decodeRequest(a, x.continuation != nil || x.turn.asks()))
}

// askPrefill asks the prefill leg and sends the owner what came of it. It may outlive the exchange.
func (x *Exchange) askPrefill(a *attempt, req *leg.Request) {
	defer x.all.Tasks.Done()
	l := &a.prefill
	defer l.End()
	defer req.Release() // what it holds may have to be sent again
	e := dispatch.Event{Kind: dispatch.EvPrefillLost, Why: reason.Panic}
	defer func() {
		if v := recover(); v != nil {
			x.all.Log.Error("panic in a leg", "panic", v, "stack", string(debug.Stack()))
		}
		if m := a.prefillEnded(e); m != nil {
			m.Body, m.Again = x.b, x.prefillRequest(l, &m.Handoff, false)
			x.all.Reclaim.Start(m, func(ctx context.Context) { x.all.Reclaim.FreeDecode(ctx, m) }, a.decode.Engine)
		}
		ids := a.tokens.reported() // before the owner takes them
		x.deliver(envelope{a: a, e: e, at: time.Now()})
		x.learnTokens(a, ids)
	}()
	e = x.prefillAnswer(a, req)
}

// prefillAnswer asks, and says what the answer means.
func (x *Exchange) prefillAnswer(a *attempt, req *leg.Request) dispatch.Event {
	r, conn, l := x.all, x.m.Connector, &a.prefill
	v, t := leg.Usable, a.tokens
	if limit := int(x.s.Config.Limits.Answer); t.asks() {
		t.ids, t.dropped, v = l.AskTokens(&req.Request, limit)
	} else {
		v = l.AskWhole(&req.Request, limit)
	}
	a.prefillTimer.Stop()
	l.Observe(x.s.Fleet, v)                      // the Observe calls change what is known of the engines, not the request
	l.ObservePeer(x.s.Fleet, conn, &a.decode, v) // but for this one: with SGLang it may set BlameBoth, and the next attempt leaves out both engines
	if v == leg.Usable {
		l.CountCached()
		l.Work.Computed()
	} else {
		e := v.PrefillEvent()
		if t.asks() && l.MayRefuse("return_token_ids", v) {
			e.Kind = dispatch.EvPrefillNoTokens
		}
		if v == leg.Broken && l.RefusedCredentials() {
			e.Why = reason.CredentialsRefused
		}
		return e
	}
	x.observeTokens(a, l, t.asks())
	e := dispatch.Event{Kind: dispatch.EvPrefillBare, Why: reason.NoTransferParams}
	if conn.Traits().Meets || l.Answer.KVParams != nil {
		e.Kind = conn.Accept(&a.h, l.Answer.KVParams)
	}
	l.ObserveHandOff(x.s.Fleet, conn, a.h.Shape, e.Kind)
	switch e.Kind {
	case dispatch.EvPrefillUsable:
		e.Why = reason.None
		if t.asks() && x.readFirst(a) {
			e.Kind = dispatch.EvPrefillFirst
		}
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
	defer x.all.Tasks.Done()
	v, streams, l := leg.Lost, false, &a.decode
	defer func() {
		if p := recover(); p != nil {
			x.all.Log.Error("panic in a leg", "panic", p, "stack", string(debug.Stack()))
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
	case a.tokens.sends() && l.MayRefuse("prompt_token_ids", v):
		e.Kind = dispatch.EvDecodeNoTokens
	case e.Why == reason.DecodeRejected && x.b.Passthrough != nil:
		e.Why = reason.EngineRejected
	case v == leg.Broken && l.RefusedCredentials():
		e.Why = reason.CredentialsRefused
	}
	l.PromptRead()
	if e.Kind == dispatch.EvDecodeFirst {
		l.Work.Computed()
		l.Streams = true
		l.Engine.Streaming.Add(1)
	} else {
		if e.Kind == dispatch.EvDecodeWhole && x.b.OneSequence() { // else its tokens did not come one after another
			l.CountCached()
			l.Work.Whole(l.Answer.CompletionTokens)
		}
		if e.Kind == dispatch.EvDecodeWhole && a.split {
			x.decodePins(a)
		}
		a.release()
	}
	l.SetKV(leg.KVDone)
	l.Became(e.Kind.LegState())
	if !x.deliver(envelope{a: a, e: e, at: time.Now()}) {
		a.release()
	}
}

// decodeAnswer asks, and says what came and whether it is a stream.
func (x *Exchange) decodeAnswer(a *attempt, req *leg.Request) (v leg.Result, streams bool) {
	l, pass := &a.decode, x.b.Passthrough != nil
	streams = !a.unstreamed
	v = func() leg.Result {
		defer req.Release()
		return l.Send(&req.Request, int(x.s.Config.Limits.Answer))
	}()
	if v != leg.Usable {
		return v, streams
	}
	if pass { // the request does not tell
		streams = openai.IsEventStream(l.ContentType)
	}
	if !streams {
		return l.ReadAnswer(int(x.s.Config.Limits.Answer), pass), false
	}
	a.stream = x.newStream(a)
	early, first, v := l.First(a.stream, a.h.Shape)
	a.stream.Hold(early, first)
	if x.m.Connector.Traits().UnwrappedErrors {
		v = l.RejectedInStream(v)
	}
	return v, true
}

// newStream returns the stream of decode's answer.
func (x *Exchange) newStream(a *attempt) *relay.Stream {
	return x.all.streams.New(&a.decode, a.prefillCached(), x.b.Shape, int(x.s.Config.Limits.Event), &x.usage)
}

// prefillRequest writes the request of a prefill leg. tokens has the engine say the prompt's token ids.
func (q *served) prefillRequest(to *leg.Leg, h *connector.Handoff, tokens bool) *leg.Request {
	m := q.all.legRequests.New(to, q.path, h.Request, q.forwarded, false)
	m.Members = m.Members[:0]
	if tokens {
		m.Members = append(m.Members, `"return_token_ids":true,`...)
	}
	m.Members = q.m.Connector.PrefillMembers(m.Members, h)
	l := openai.VariantPrefill
	if q.m.Connector.Traits().RequiresSplit {
		l = openai.VariantPrefillMirrored
	}
	m.Write(q.b, l, h.Request, m.Members)
	m.Once = q.m.Connector.Traits().Stock != nil // as decode's
	return m
}

// decodeRequest writes the decode leg's request. tokens has the engine say which tokens it makes.
func (q *served) decodeRequest(a *attempt, tokens bool) *leg.Request {
	m := q.all.legRequests.New(&a.decode, q.path, a.h.Request, q.forwarded, q.b.Stream)
	m.Members = m.Members[:0]
	if tokens {
		m.Members = append(m.Members, `"return_token_ids":true`...)
	}
	if a.split {
		if tokens {
			m.Members = append(m.Members, ',')
		}
		m.Members = q.m.Connector.DecodeMembers(m.Members, &a.h)
	}
	if a.tokens.sends() {
		m.Members = connector.AppendTokenIDs(m.Members, a.tokens.ids)
	}
	m.Write(q.b, openai.VariantDecode, a.h.Request, m.Members)
	if q.b.Passthrough != nil {
		leg.Passthrough(q.b.Passthrough, m)
	}
	m.Once = a.split && q.m.Connector.Traits().Stock != nil // two under one id: the second may stay held, or end the engine
	return m
}

// observeDecode learns from a decode leg what its engine is like, and of a split request what its pair is.
func (q *served) observeDecode(a *attempt, v leg.Result) {
	a.decode.Observe(q.s.Fleet, v)
	if v == leg.Usable {
		q.observeTokens(a, &a.decode, a.tokens.sends())
	}
	if known, good := a.decode.Transferred(v); known && a.pair != nil {
		q.observeTransfer(a, good)
	}
}

// observeTransfer learns how a transfer between the attempt's engines has ended.
func (q *served) observeTransfer(a *attempt, good bool) {
	if q.s.Fleet.TransferEnded(a.pair, good) {
		q.all.Pairs.ForgetPair(a.runs()) // the next handshake is its probe
		q.all.Pairs.Schedule()
	}
}
