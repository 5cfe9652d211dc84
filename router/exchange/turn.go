package exchange

import (
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
	"pdrouter/router/report"
	"pdrouter/router/tokens"
)

// turn collects what is kept of one turn of a conversation, so that its KV can be moved. Nil collects nothing.
type turn struct {
	asked   bool // the gateway has asked for the token ids, and its client has not
	adapter string
	prompt  []uint32
	answer  []uint32
	trace   *fleet.PromptTrace
	room    []byte // of an event

	offer  *migration.Offer // what can be moved before the request; nil: nothing, or it was not asked
	looked bool             // it was asked
	move   *migration.Routed
	silent *fleet.Engine // had not answered when the time of the move was over; nil: none
}

// newTurn returns what collects the turn that a request is; nil if its KV is not moved, whatever comes.
func newTurn(all *Exchanges, q *Request) *turn {
	s, b := q.ServedBy, q.Body
	if all.Moves == nil || !s.Config.Migration.On() {
		return nil
	}
	room := int(min(s.Config.Limits.Answer, s.Config.Limits.Event)) / 2 // for the prompt's ids: an answer must not be too large by them
	if q.Branch || !migration.Keeps(q.Model, b, room) {
		return nil
	}
	return &turn{asked: !b.AsksTokenIDs(), adapter: q.Adapter}
}

// asks reports whether decode is asked for token ids.
func (t *turn) asks() bool { return t != nil && t.asked }

// whole reads the token ids of a whole answer, and returns it as the client gets it.
func (t *turn) whole(body []byte) []byte {
	out := openai.TakeTokens(make([]byte, 0, len(body)), body, t.take)
	if t.asked {
		return out
	}
	return body
}

// event is whole for one event of a stream. What it returns is valid until the next call.
func (t *turn) event(event []byte) []byte {
	start, end, n := sse.DataSpan(event)
	if n != 1 {
		return event
	}
	t.room = append(t.room[:0], event[:start]...)
	t.room = append(openai.TakeTokens(t.room, event[start:end], t.take), event[end:]...)
	if t.asked {
		return t.room
	}
	return event
}

func (t *turn) take(of openai.TokensOf, array []byte) {
	switch ids := tokens.ParseIDs(array); {
	case of == openai.TokensOfChoice:
		t.answer = append(t.answer, ids...)
	case t.prompt == nil:
		t.prompt = ids
	}
}

// decodePins sees to what decode pins of its whole answer. Only a turn that comes to its end claims it; else it is freed soon.
func (x *Exchange) decodePins(a *attempt) {
	if l := &a.decode; x.turn != nil {
		x.all.Moves.Answered(a.h.Request, l.Engine, l.Answer.KVParams)
	} else {
		x.all.Reclaim.Answered(x.s.Reclaim, l.Engine, l.Answer.KVParams)
	}
}

// noteTurn has the turn kept, if it is whole and its tokens are known.
func (x *Exchange) noteTurn(outcome dispatch.Outcome) {
	t, a := x.turn, x.cur
	if outcome != dispatch.Completed || x.Sum.Status != 200 || x.Sum.Continued > 0 || a == nil || len(t.prompt) == 0 {
		return
	}
	n := migration.NewTurn(x.m, t.adapter, x.b, x.tenant, x.selection.Session())
	n.Answer = a.h.Request
	n.IDs, n.Prompt, n.Trace, n.Decode = append(t.prompt, t.answer...), len(t.prompt), t.trace, a.decode.Engine
	if a.split {
		n.Prefill = a.prefill.Engine
	}
	if e := x.all.Moves.Note(&n); e != nil {
		x.Sum.EarlierMove = &report.EarlierMove{Reason: e.Reason.String(), Result: e.Result.String(), From: e.From, To: e.To, Tokens: e.Tokens, Seconds: e.Took.Seconds()}
	}
}
