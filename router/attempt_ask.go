package router

import (
	"context"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// startPrefill runs the prefill leg on a goroutine of its own.
func (x *exchange) startPrefill(a *attempt) {
	x.sum.Phases.Pair = time.Since(x.sum.Arrived)
	a.prefill.join(&x.r.cancels, a.prefill.engine)
	a.prefillTimer = a.prefill.later(x.s.cfg.Timeouts.Prefill, errLegLate)
	req := x.prefillRequest(&a.prefill, &a.h).hold(x.b)
	a.prefill.begin()
	x.r.tasks.Add(1)
	x.r.goroutines.Go(func() { x.askPrefill(a, req) })
}

// startDecode runs the decode leg on a goroutine of its own.
func (x *exchange) startDecode(a *attempt, req *letter) {
	req.hold(x.b)
	a.decodeIs = withAsker
	a.decode.begin()
	x.r.tasks.Add(1)
	x.r.goroutines.Go(func() { x.askDecode(a, req) })
}

// askForDecode asks the attempt's decode engine for the whole answer.
func (x *exchange) askForDecode(a *attempt) {
	x.onward = x.newOnward()
	x.startDecode(a, x.decodeRequest(a, x.onward != nil))
}

// askPrefill asks the prefill leg and sends the owner what came of it. It may outlive the exchange.
func (x *exchange) askPrefill(a *attempt, req *letter) {
	defer x.r.tasks.Done()
	l := &a.prefill
	defer l.end()
	defer req.free() // what it holds may have to be sent again
	e := dispatch.Event{Kind: dispatch.EvPrefillLost, Why: reason.Panic}
	defer func() {
		if v := recover(); v != nil {
			x.r.log.Error("panic in a leg", "panic", v, "stack", stack())
		}
		if m := a.prefilled(e); m != nil {
			m.b, m.again = x.b, x.prefillRequest(l, &m.h)
			x.r.reclaim.behind(m, func(ctx context.Context) { x.r.reclaim.settle(ctx, m) }, a.decode.engine)
		}
		x.enqueue(envelope{a: a, e: e, at: time.Now()})
	}()
	e = x.prefillAnswer(a, req)
}

// prefillAnswer asks, and says what the answer means.
func (x *exchange) prefillAnswer(a *attempt, req *letter) dispatch.Event {
	r, conn, l := x.r, x.m.Connector, &a.prefill
	v := l.send(&req.Request, x.s.cfg.Limits.Answer)
	if v == vUsable {
		v = l.whole(x.s.cfg.Limits.Answer)
	}
	a.prefillTimer.Stop()
	l.observe(x.s.fleet, v)
	x.doubt(l, &a.decode, v)
	if v != vUsable {
		e := prefillEvent(v)
		if v == vBroken && l.refusedCredentials() {
			e.Why = reason.CredentialsRefused
		}
		return e
	}
	e := dispatch.Event{Kind: dispatch.EvPrefillBare, Why: reason.NoTransferParams}
	if conn.Traits().Meets || l.ans.KVParams != nil {
		e.Kind = conn.Accept(&a.h, l.ans.KVParams)
	}
	l.observeHandOff(x.s.fleet, conn, a.h.Shape, e.Kind)
	switch e.Kind {
	case dispatch.EvPrefillUsable:
		e.Why = reason.None
		if conn.Traits().Mode == dispatch.InTurn {
			r.monitor.sawRun(l.engine, l.ans.KVParams)
		}
	case dispatch.EvPrefillMoved:
		e.Why = reason.EngineRestarted
		if c, ok := connector.ParseCoordinates(l.ans.KVParams); ok {
			r.monitor.moved(l.engine, a.h.Endpoint, c)
		}
	}
	return e
}

// askDecode asks the decode leg and reads until its first event, or its whole answer, is here. It sends the owner what came of it, and
// may outlive the exchange.
func (x *exchange) askDecode(a *attempt, req *letter) {
	defer x.r.tasks.Done()
	v, streams, l := vLost, false, &a.decode
	defer func() {
		if p := recover(); p != nil {
			x.r.log.Error("panic in a leg", "panic", p, "stack", stack())
			v = vLost
		}
		e := decodeEvent(v, streams)
		switch {
		case e.Why == reason.DecodeRejected && x.b.Passthrough != nil:
			e.Why = reason.EngineRejected
		case v == vBroken && l.refusedCredentials():
			e.Why = reason.CredentialsRefused
		}
		l.hasRead()
		if e.Kind == dispatch.EvDecodeFirst {
			l.streams = true
			l.engine.Streaming.Add(1)
		} else {
			a.release()
		}
		l.kvBecomes(kvOver)
		l.became(e.Kind.Leaves())
		if !x.enqueue(envelope{a: a, e: e, at: time.Now()}) {
			a.release()
		}
	}()
	v, streams = x.decodeAnswer(a, req)
	x.observeDecode(a, v)
	x.doubt(l, &a.prefill, v)
}

// decodeAnswer asks, and says what came and whether it is a stream.
func (x *exchange) decodeAnswer(a *attempt, req *letter) (v verdict, streams bool) {
	l, pass := &a.decode, x.b.Passthrough != nil
	streams = !a.unstreamed
	v = func() verdict {
		defer req.free()
		return l.send(&req.Request, x.s.cfg.Limits.Answer)
	}()
	if v != vUsable {
		return v, streams
	}
	if pass { // the request does not tell
		streams = openai.IsEventStream(l.ctype)
	}
	if !streams {
		return l.told(x.s.cfg.Limits.Answer, pass), false
	}
	a.stream = newStream(x, a)
	v = a.stream.first(a.h.Shape)
	if x.m.Connector.Traits().BareErrors {
		v = rejectedInStream(l, v)
	}
	return v, true
}

// prefillEvent says what a prefill engine's behaviour means for the dispatch.
func prefillEvent(v verdict) dispatch.Event {
	switch v {
	case vRefused:
		return dispatch.Event{Kind: dispatch.EvPrefillRefused, Why: reason.EngineRefused}
	case vRejected:
		return dispatch.Event{Kind: dispatch.EvPrefillRejected, Why: reason.PrefillRejected}
	case vBroken:
		return dispatch.Event{Kind: dispatch.EvPrefillBroken, Why: reason.PrefillFailed}
	case vGarbage:
		return dispatch.Event{Kind: dispatch.EvPrefillUnusable, Why: reason.BadUpstream}
	case vLate:
		return dispatch.Event{Kind: dispatch.EvPrefillLate, Why: reason.PrefillTimeout}
	case vTooLarge:
		return dispatch.Event{Kind: dispatch.EvPrefillTooLarge, Why: reason.AnswerTooLarge}
	}
	return dispatch.Event{Kind: dispatch.EvPrefillLost, Why: reason.PrefillFailed}
}

// decodeEvent says what a decode engine's behaviour means for the dispatch.
func decodeEvent(v verdict, stream bool) dispatch.Event {
	switch v {
	case vUsable:
		if stream {
			return dispatch.Event{Kind: dispatch.EvDecodeFirst}
		}
		return dispatch.Event{Kind: dispatch.EvDecodeWhole}
	case vRefused:
		return dispatch.Event{Kind: dispatch.EvDecodeRefused, Why: reason.EngineRefused}
	case vRejected:
		return dispatch.Event{Kind: dispatch.EvDecodeRejected, Why: reason.DecodeRejected}
	case vBroken:
		return dispatch.Event{Kind: dispatch.EvDecodeBroken, Why: reason.DecodeFailed}
	case vGarbage:
		return dispatch.Event{Kind: dispatch.EvDecodeBroken, Why: reason.BadUpstream}
	case vLate:
		return dispatch.Event{Kind: dispatch.EvDecodeLate, Why: reason.TransferTimeout}
	case vTooLarge:
		return dispatch.Event{Kind: dispatch.EvDecodeTooLarge, Why: reason.AnswerTooLarge}
	}
	return dispatch.Event{Kind: dispatch.EvDecodeLost, Why: reason.DecodeFailed}
}
