package exchange

import (
	"context"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
)

// newJob returns the job that frees what an attempt of the request may leak.
func (q *served) newJob(a *attempt) *reclaim.Job {
	m := reclaim.NewJob(q.s.Reclaim, &a.h, q.m.Connector, q.m.Name, a.prefill.Engine, a.decode.Engine)
	m.Tokens = q.b.PromptTokens()
	if a.keptOpen() {
		m.OpenLeg, m.BegunInOrder = &a.decode, q.b.BegunInOrder(q.m.Name)
	}
	return m
}

// startJob runs a job in the background. holder is the engine that surely holds KV; nil if that is not sure.
func (q *served) startJob(a *attempt, m *reclaim.Job, run func(context.Context), holder *fleet.Engine) {
	if !q.all.Reclaim.Start(m, run, holder) && holder != nil {
		a.leaked = true
		a.closeDecode()
	}
}

// closePrefill ends the prefill leg of an attempt whose decode leg holds nothing.
func (q *served) closePrefill(a *attempt) {
	// It may just have finished. With a data plane the cancel frees what it holds.
	switch {
	case q.m.Connector.Traits().Cancels:
	case q.m.Connector.Traits().RequiresSplit || !a.prefillAnswered():
		q.freeUnanswered(a)
	case a.spoiled():
		q.freeTaken(a)
	default:
		q.freePrefill(a)
	}
	a.prefill.Cancel(leg.ErrEnded)
}

// finishPrefill lets the prefill leg continue in the background, for at most timeouts.cleanup, so that decode's blocks are freed.
func (q *served) finishPrefill(a *attempt) {
	if a.decodeUnsent() {
		q.closePrefill(a)
		return
	}
	a.prefillTimer.Reset(q.s.Config.Timeouts.Cleanup)
	if a.decode.TookAll() {
		return
	}
	m := q.newJob(a)
	m.PrefillLost = true
	if !a.onPrefillFailure(m) {
		q.freeDecode(a)
	}
}

// abandon frees what decode holds for a run of prefill that is over, or that has handed nothing off.
func (q *served) abandon(a *attempt) {
	m := q.newJob(a)
	kept, never := a.prefillKeptAll()
	m.NoHandOff = never
	q.startJob(a, m, func(ctx context.Context) {
		if kept && !never {
			m.EndLeg()
			q.all.Reclaim.CountLeak(ctx, m, m.Decode, reclaim.CausePossible)
			return
		}
		q.all.Reclaim.FreeDecode(ctx, m)
	}, m.Decode)
}

// countLeak counts what prefill holds and has not named.
func (q *served) countLeak(a *attempt) {
	a.leaked = true
	m := q.newJob(a)
	q.startJob(a, m, func(ctx context.Context) { q.all.Reclaim.CountLeak(ctx, m, m.Prefill, reclaim.CauseNoAnswer) }, m.Prefill)
}

// freeDecode frees what decode may hold: it was asked, and has shown no token. As a rule it asks the attempt's prefill engine again under the
// same id, so that prefill writes what decode waits for. The whole body is needed: a shorter prompt would not match. The exceptions:
//
//   - Decode took all: nothing is held.
//   - Prefill has answered, and nothing was sent to decode: prefill's blocks are freed.
//   - The drain closed decode's leg after prefill's answer: nothing is held if decode was at work, else a leak is possible and is counted.
func (q *served) freeDecode(a *attempt) {
	answered := a.prefillAnswered()
	switch {
	case a.decode.TookAll():
		return
	case answered && a.decodeUnsent():
		q.freePrefill(a)
		return
	}
	m := q.newJob(a)
	m.PrefillLost, m.Noticed = !answered && !a.prefillLeftNothing(), a.prefillAcknowledged()
	if answered {
		m.FirstParams = a.prefill.Answer.KVParams
	}
	if answered && a.wholeWithoutClient() && !a.keptOpen() {
		a.closeDecode()
		if !a.worked() {
			q.startJob(a, m, func(ctx context.Context) {
				q.all.Reclaim.CountLeak(ctx, m, m.Decode, reclaim.CausePossible)
				q.all.Reclaim.FreeFirstAnswer(ctx, m, reclaim.Possible)
			}, m.Decode)
		}
		return
	}
	m.Body, m.Again = q.b, q.prefillRequest(&a.prefill, &a.h, false)
	q.startJob(a, m, func(ctx context.Context) {
		if m.OpenLeg != nil || a.decode.WaitSent() { // else nothing waits for prefill
			q.all.Reclaim.FreeDecode(ctx, m)
		} else {
			q.all.Reclaim.FreeFirstAnswer(ctx, m, reclaim.Possible)
		}
	}, m.Decode)
}

// freeTaken frees what prefill may hold for a decode leg that was asked and has ended.
func (q *served) freeTaken(a *attempt) {
	switch {
	case a.decode.TookAll():
		return
	case a.decodeUnsent():
		q.freePrefill(a)
		return
	}
	m := q.newJob(a)
	m.Handoff.KVParams = a.prefill.Answer.KVParams
	if q.m.Connector.Traits().Mode == dispatch.Together {
		q.startJob(a, m, func(ctx context.Context) { q.all.Reclaim.Unwritten(ctx, m) }, m.Prefill)
		return
	}
	q.startJob(a, m, func(ctx context.Context) {
		q.all.Reclaim.FreePrefill(ctx, m, reclaim.PrefillHeld{Answered: true, Asked: true}, reclaim.Certain)
	}, m.Prefill)
}

// freeUnanswered frees what prefill may hold although its leg is ended before it answered: it may just have finished.
func (q *served) freeUnanswered(a *attempt) {
	if !a.prefill.Engine.Origin.Entry.RequestIDRandomizationDisabled || q.s.Reclaim.Agent == nil {
		return
	}
	m := q.newJob(a)
	q.startJob(a, m, func(ctx context.Context) { q.all.Reclaim.NotifyNamed(ctx, m) }, nil)
}

// freePrefill frees the blocks that prefill holds and no decode engine was asked to take: by telling prefill so, or else by a decode leg of
// one token under the same id, which takes them.
func (q *served) freePrefill(a *attempt) {
	m := q.newJob(a)
	h := &m.Handoff
	h.KVParams = a.prefill.Answer.KVParams
	if c, ok := connector.ParseEndpoint(h.KVParams); ok {
		h.Endpoint = c
	}
	to := a.decode.Engine
	for _, e := range q.m.Decode {
		if !e.Down.Load() && !q.excluded.Has(e) && (e != a.decode.Engine || len(q.m.Decode) == 1) {
			to = e
			break
		}
	}
	m.Decode, m.Body = to, q.b
	m.Taking = q.all.legRequests.New(&leg.Leg{Engine: to}, q.path, h.Request, q.forwarded, false)
	m.Taking.Write(q.b, openai.VariantPrefill, h.Request, q.m.Connector.DecodeMembers(nil, h))
	m.Taking.Once = true
	q.startJob(a, m, func(ctx context.Context) {
		q.all.Reclaim.FreePrefill(ctx, m, reclaim.PrefillHeld{Answered: true}, reclaim.Certain)
	}, m.Prefill)
}
