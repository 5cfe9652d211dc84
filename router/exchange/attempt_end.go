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
func (g *attemptContext) newJob(a *attempt) *reclaim.Job {
	m := reclaim.NewJob(g.s.Reclaim, &a.h, g.m.Connector, g.m.Name, a.prefill.Engine, a.decode.Engine)
	m.Tokens = g.b.PromptTokens()
	if a.keptOpen() {
		m.OpenLeg, m.BegunInOrder = &a.decode, g.b.BegunInOrder(g.m.Name)
	}
	return m
}

// startJob runs a job in the background. holder is the engine that surely holds KV; nil if that is not sure.
func (g *attemptContext) startJob(a *attempt, m *reclaim.Job, run func(context.Context), holder *fleet.Engine) {
	if !g.all.Reclaim.Start(m, run, holder) && holder != nil {
		a.leaked = true
		a.closeDecode()
	}
}

// closePrefill ends the prefill leg of an attempt whose decode leg holds nothing.
func (g *attemptContext) closePrefill(a *attempt) {
	// It may just have finished. With a data plane the cancel gives that back.
	switch {
	case g.m.Connector.Traits().Cancels:
	case g.m.Connector.Traits().RequiresSplit || !a.prefillAnswered():
		g.giveBackNamed(a)
	case a.spoiled():
		g.giveBack(a)
	default:
		g.freePrefill(a)
	}
	a.prefill.Cancel(leg.ErrEnded)
}

// finishPrefill lets the prefill leg continue in the background, for at most timeouts.cleanup, so that decode's blocks are freed.
func (g *attemptContext) finishPrefill(a *attempt) {
	if a.decodeUnsent() {
		g.closePrefill(a)
		return
	}
	a.prefillTimer.Reset(g.s.Config.Timeouts.Cleanup)
	if a.decode.TookAll() {
		return
	}
	m := g.newJob(a)
	m.PrefillLost = true
	if !a.onPrefillFailure(m) {
		g.repeatPrefill(a)
	}
}

// abandon frees what decode holds for a run of prefill that is over, or that has handed nothing off.
func (g *attemptContext) abandon(a *attempt) {
	m := g.newJob(a)
	kept, never := a.prefillKeptAll()
	m.NoHandOff = never
	g.startJob(a, m, func(ctx context.Context) {
		if kept && !never {
			m.EndLeg()
			g.all.Reclaim.CountLeak(ctx, m, m.Decode, reclaim.CausePossible)
			return
		}
		g.all.Reclaim.FreeDecode(ctx, m)
	}, m.Decode)
}

// countLeak counts what prefill holds and has not named.
func (g *attemptContext) countLeak(a *attempt) {
	a.leaked = true
	m := g.newJob(a)
	g.startJob(a, m, func(ctx context.Context) { g.all.Reclaim.CountLeak(ctx, m, m.Prefill, reclaim.CauseNoAnswer) }, m.Prefill)
}

// repeatPrefill asks the attempt's prefill engine again under the same id, so that it writes what decode waits for
// and decode's blocks are freed. The whole body is needed: a shorter prompt would not match.
func (g *attemptContext) repeatPrefill(a *attempt) {
	answered := a.prefillAnswered()
	switch {
	case a.decode.TookAll():
		return
	case answered && a.decodeUnsent():
		g.freePrefill(a)
		return
	}
	m := g.newJob(a)
	m.PrefillLost, m.Noticed = !answered && !a.prefillRefused(), a.prefillAcknowledged()
	if answered {
		m.FirstParams = a.prefill.Answer.KVParams
	}
	if answered && a.blind() && !a.keptOpen() { // decode may have been at work with what prefill has written
		a.closeDecode()
		if !a.worked() {
			g.startJob(a, m, func(ctx context.Context) {
				g.all.Reclaim.CountLeak(ctx, m, m.Decode, reclaim.CausePossible)
				g.all.Reclaim.GiveBackFirst(ctx, m, reclaim.Possible)
			}, m.Decode)
		}
		return
	}
	m.Body, m.Again = g.b, g.prefillRequest(&a.prefill, &a.h)
	g.startJob(a, m, func(ctx context.Context) {
		if m.OpenLeg != nil || a.decode.WaitSent() { // else nothing waits for prefill
			g.all.Reclaim.FreeDecode(ctx, m)
		} else {
			g.all.Reclaim.GiveBackFirst(ctx, m, reclaim.Possible)
		}
	}, m.Decode)
}

// giveBack frees what prefill may hold for a decode leg that was asked and has ended.
func (g *attemptContext) giveBack(a *attempt) {
	switch {
	case a.decode.TookAll():
		return
	case a.decodeUnsent():
		g.freePrefill(a)
		return
	}
	m := g.newJob(a)
	m.Handoff.KVParams = a.prefill.Answer.KVParams
	if g.m.Connector.Traits().Mode == dispatch.Together {
		g.startJob(a, m, func(ctx context.Context) { g.all.Reclaim.Unwritten(ctx, m) }, m.Prefill)
		return
	}
	g.startJob(a, m, func(ctx context.Context) {
		g.all.Reclaim.GiveBack(ctx, m, reclaim.PrefillHeld{Answered: true, Asked: true}, reclaim.Certain)
	}, m.Prefill)
}

// giveBackNamed frees what prefill may hold although its leg is ended before it answered: it may just have finished.
func (g *attemptContext) giveBackNamed(a *attempt) {
	if !a.prefill.Engine.Origin.Entry.RequestIDRandomizationDisabled || g.s.Reclaim.Agent == nil {
		return
	}
	m := g.newJob(a)
	g.startJob(a, m, func(ctx context.Context) { g.all.Reclaim.NotifyNamed(ctx, m) }, nil)
}

// freePrefill frees the blocks that prefill holds and no decode engine was asked to take: by telling prefill so, or else by a decode leg of
// one token under the same id, which takes them.
func (g *attemptContext) freePrefill(a *attempt) {
	m := g.newJob(a)
	h := &m.Handoff
	h.KVParams = a.prefill.Answer.KVParams
	if c, ok := connector.ParseEndpoint(h.KVParams); ok {
		h.Endpoint = c
	}
	to := a.decode.Engine
	for _, e := range g.m.Decode {
		if !e.Down.Load() && !g.excluded.Has(e) && (e != a.decode.Engine || len(g.m.Decode) == 1) {
			to = e
			break
		}
	}
	m.Decode, m.Body = to, g.b
	m.Taking = g.all.legRequests.New(&leg.Leg{Engine: to}, g.path, h.Request, g.forwarded, false)
	m.Taking.Write(g.b, openai.VariantPrefill, h.Request, g.m.Connector.DecodeMembers(nil, h))
	m.Taking.Once = true
	g.startJob(a, m, func(ctx context.Context) {
		g.all.Reclaim.GiveBack(ctx, m, reclaim.PrefillHeld{Answered: true}, reclaim.Certain)
	}, m.Prefill)
}
