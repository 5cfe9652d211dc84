package exchange

import (
	"pdrouter/internal/gather"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/firsttoken"
	"pdrouter/router/openai"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/tokens"
)

// first is what is known of the token that prefill samples, where the client may get it. The leg's goroutine writes result and token before it
// sends prefill's event.
type first struct {
	of     openai.Continued
	result firsttoken.Result
	token  *firsttoken.Token // nil: the client does not get it
}

// planFirst decides whether the client may get the token of the attempt's prefill engine, as far as is known before that is asked. It returns nil
// if it may not.
func (x *Exchange) planFirst(a *attempt) *first {
	if x.Sum.FirstToken = firsttoken.None; !x.m.FirstTokenOfPrefill {
		return nil
	}
	of, result := firsttoken.OfBody(x.b)
	switch {
	case result != firsttoken.Prefill:
	case x.branch: // what the client gets is made of several streams
		result = firsttoken.Body
	case x.withoutTokens, a.prefill.Engine.TokenIDs.Refused():
		result = firsttoken.NoTokenIDs
	default:
		return &first{of: of}
	}
	x.Sum.FirstToken = result
	return nil
}

// readFirst reads prefill's token of its usable answer, and reports whether the client gets it.
func (x *Exchange) readFirst(a *attempt) bool {
	f := a.tokens.first
	if f == nil {
		return false
	}
	var t *firsttoken.Token
	if t, f.result = firsttoken.OfAnswer(x.b.Shape == openai.ShapeChat, a.prefill.Body, a.tokens.ids); t == nil {
		return false
	}
	p := firsttoken.Pair{
		Handed: connector.ParseHanded(a.prefill.Answer.KVParams), MaxLen: a.decode.Engine.MaxLen(), Max: f.of.Max,
		PrefillBlock: a.prefill.Engine.CacheSize().BlockTokens, DecodeBlock: a.decode.Engine.CacheSize().BlockTokens,
	}
	if f.result = p.Fit(t.PromptTokens); f.result == firsttoken.Prefill {
		f.token = t
	}
	return f.token != nil
}

// noteFirst notes whether the client gets prefill's token, which has answered.
func (x *Exchange) noteFirst(t *forwarding) {
	if t != nil && t.first != nil {
		x.Sum.FirstToken = t.first.result
	}
}

// takeFirst begins the client's stream with prefill's token.
func (x *Exchange) takeFirst(m envelope) dispatch.Event {
	t := m.a.tokens
	if x.continuation = x.newContinuation(); x.continuation == nil {
		x.continuation = relay.NewContinuation(t.first.of, x.b.Shape == openai.ShapeChat, false)
	}
	s := x.newStream(m.a)
	if x.turn != nil {
		x.continuation.TellTokens()
		x.turn.prompt, x.turn.answer = tokens.ParseIDs(t.ids), nil
		x.turn.take(openai.TokensOfChoice, append(append([]byte{'['}, t.first.token.Token...), ']'))
		s.Change = x.turn.event
	}
	s.BeginFirst(x.continuation, t.first.token)
	x.continuation.Bound(m.a.decode.Engine.MaxLen()) // it is known: else decode's token would be taken
	x.Reply.Stream = s
	x.Sum.Stream, x.Sum.TokenIDs = true, report.TokensForwarded
	x.Sum.Phases.FirstToken = x.Sum.Phases.Prefill
	x.observeTTFT()
	return m.e
}

// askRest asks the attempt's decode engine for what comes after prefill's token, on a goroutine of its own.
func (x *Exchange) askRest(a *attempt) {
	o := x.continuation
	a.h.KVParams = a.prefill.Answer.KVParams
	x.expect(a)
	x.traceLeg(a, &a.decode, "decode")
	m := x.all.legRequests.New(&a.decode, openai.PathCompletions, a.h.Request, x.forwarded, true)
	m.Members = x.m.Connector.DecodeMembers(m.Members[:0], &a.h)
	m.WriteBy(func(dst []byte, gaps *gather.Gaps) []byte { return o.Body(dst, gaps, x.b.CacheSalt(), m.Members) })
	m.Once = true // two under one id: the second may stay held, or end the engine
	x.startDecode(a, m)
	a.tokens.release()
}

// joinFirst takes over decode's stream, which goes on after prefill's token.
func (x *Exchange) joinFirst(m envelope) dispatch.Event {
	x.Sum.Phases.Joined = m.at.Sub(x.Sum.Arrived)
	x.observeDecodeFirst(m.a, m.at)
	return x.resume(m)
}
