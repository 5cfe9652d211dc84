package exchange

import (
	"bytes"

	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/report"
)

// tokens is what an attempt does with the prompt's token ids: prefill is asked for them and answers before decode is asked, so decode need not
// render and tokenise the messages once more. Nil does nothing.
type tokens struct {
	asked   bool          // prefill is asked for them
	ids     []byte        // the array that it has answered; nil if there is none, and after decode was asked
	dropped bool          // the answer was too large with the array
	sent    bool          // decode's leg carries them
	doubted *fleet.Engine // one that may have refused them in the attempt before; a usable answer without them shows that it has
}

// planTokens decides whether the attempt's prefill engine is asked for the prompt's token ids.
func (x *Exchange) planTokens(a *attempt) {
	if !x.m.Connector.Traits().TakesTokenIDs {
		return
	}
	switch why := x.b.Rendered(); {
	case !x.m.ForwardsTokenIDs:
		x.Sum.TokenIDs = report.TokensOff
	case why != openai.RenderedOnce:
		x.Sum.TokenIDs = renderedTwice[why]
	case x.withoutTokens, a.prefill.Engine.TokenIDs.Refused(), a.decode.Engine.TokenIDs.Refused():
		x.Sum.TokenIDs = report.TokensRefused
		if x.doubted != nil {
			a.tokens = &tokens{doubted: x.doubted}
		}
	default:
		a.tokens = &tokens{asked: true}
	}
}

// renderedTwice names why decode renders the prompt itself.
var renderedTwice = [...]report.TokenIDs{
	openai.RenderedRoute: report.TokensRoute, openai.RenderedMedia: report.TokensMedia, openai.RenderedText: report.TokensPromptText,
}

// handTokens has decode's leg carry the token ids that prefill has answered, if there are any.
func (x *Exchange) handTokens(a *attempt) {
	t := a.tokens
	switch {
	case !t.asks():
	case t.ids != nil && !bytes.Contains(a.h.KVParams, []byte("prompt_token_ids")): // else they are there already
		t.sent = true
		x.Sum.TokenIDs = report.TokensForwarded
	case t.dropped:
		x.Sum.TokenIDs = report.TokensTooLarge
	default:
		x.Sum.TokenIDs = report.TokensNotReported
	}
}

func (t *tokens) asks() bool  { return t != nil && t.asked }
func (t *tokens) sends() bool { return t != nil && t.sent }

// release lets the ids go, as decode's leg has a copy.
func (t *tokens) release() {
	if t != nil {
		t.ids = nil
	}
}

// refusesTokens reports whether a leg with the members for token ids may have been rejected for them.
func (q *served) refusesTokens(l *leg.Leg, v leg.Result) bool {
	may, named := l.MayRefuseTokens(v)
	if named {
		q.tokensRefused(l.Engine)
	}
	return may
}

// acceptsTokens notes what a usable answer shows of whether the engine accepts the members for token ids. with says that the leg had them.
func (q *served) acceptsTokens(a *attempt, l *leg.Leg, with bool) {
	switch {
	case with:
		l.Engine.TokenIDs.Accept()
	case a.tokens != nil && a.tokens.doubted == l.Engine:
		q.tokensRefused(l.Engine)
	}
}

func (q *served) tokensRefused(e *fleet.Engine) {
	if e.TokenIDs.Refuse() {
		q.all.Log.Warn("engine refuses prompt token ids", "engine", e.Name)
	}
}
