package exchange

import (
	"bytes"
	"cmp"

	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/report"
	"pdrouter/router/tokens"
)

// forwarding is what an attempt does with the prompt's token ids: prefill is asked for them and answers before decode is asked, so decode need not
// render and tokenise the messages once more. Nil does nothing.
type forwarding struct {
	asked   bool          // prefill is asked for them
	chat    bool          // decode may carry them with the messages
	first   *first        // the client may get prefill's token; nil: it does not
	ids     []byte        // the array that it has answered; nil if there is none, and after decode was asked
	dropped bool          // the answer was too large with the array
	sent    bool          // decode's leg carries them
	doubted *fleet.Engine // one that may have refused them in the attempt before; see observeTokens
}

// planTokens decides whether the attempt's prefill engine is asked for the prompt's token ids.
func (x *Exchange) planTokens(a *attempt) {
	if !x.m.Connector.Traits().TakesTokenIDs {
		return
	}
	of := x.planFirst(a)
	switch why := x.b.Rendered(); {
	case !x.m.ForwardsTokenIDs:
		x.Sum.TokenIDs = report.TokensOff
	case why != openai.RenderedOnce:
		x.Sum.TokenIDs = renderedTwice[why]
	case x.withoutTokens, a.prefill.Engine.TokenIDs.Refused(), a.decode.Engine.TokenIDs.Refused():
		x.Sum.TokenIDs = report.TokensRefused
		if x.doubted != nil {
			a.tokens = &forwarding{doubted: x.doubted}
		}
	default:
		a.tokens = &forwarding{asked: true, chat: true}
	}
	if of != nil {
		if a.tokens == nil {
			a.tokens = &forwarding{asked: true}
		}
		a.tokens.first = of
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
	case t == nil || !t.chat:
	case t.ids != nil && !bytes.Contains(a.h.KVParams, []byte("prompt_token_ids")): // else they are there already
		t.sent = true
		x.Sum.TokenIDs = report.TokensForwarded
	case t.dropped:
		x.Sum.TokenIDs = report.TokensTooLarge
	default:
		x.Sum.TokenIDs = report.TokensNotReported
	}
}

// learnTokens notes the prompt's token ids that prefill has answered, if one of the engines publishes which blocks it has: only the index of
// these is asked by token ids. The caller retains the body.
func (x *Exchange) learnTokens(a *attempt, ids []byte) {
	none := config.KVEvents{}
	if ids == nil || x.all.Tokens == nil || a.prefill.Engine.KVEvents() == none && a.decode.Engine.KVEvents() == none {
		return
	}
	x.all.Tasks.Recover("learning token ids", func() {
		if list := tokens.ParseIDs(ids); list != nil {
			x.all.Tokens.Learn(tokens.PromptOf(cmp.Or(x.b.Model, x.m.Name), x.tenant, x.b), list)
		}
	})
}

func (t *forwarding) asks() bool  { return t != nil && t.asked }
func (t *forwarding) sends() bool { return t != nil && t.sent }

// reported returns the ids that prefill has answered.
func (t *forwarding) reported() []byte {
	if t == nil || !t.chat {
		return nil
	}
	return t.ids
}

// release lets the ids go, as decode's leg has a copy.
func (t *forwarding) release() {
	if t != nil {
		t.ids = nil
	}
}

// observeTokens notes what a usable answer shows of whether engines accept the members for token ids. with says that the leg had them. If it had
// not, and an engine of its role has rejected the request with them, that engine refuses them.
func (q *served) observeTokens(a *attempt, l *leg.Leg, with bool) {
	switch {
	case with:
		l.Engine.TokenIDs.Accept()
	case a.tokens == nil || a.tokens.doubted == nil || a.tokens.doubted.Origin.Role != l.Engine.Origin.Role:
	case a.tokens.doubted.TokenIDs.Refuse():
		q.all.Log.Warn("engine refuses prompt token ids", "engine", a.tokens.doubted.Name)
	}
}
