package router

import (
	"context"
	"log/slog"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
)

// start runs what sees to what a request left, after it. If too much runs on already it reports false, and counts
// what holder holds for sure, if it is not nil.
func (r *reclaimer) start(m *job, see func(context.Context), holder *fleet.Engine) bool {
	if see != nil {
		m.b.Retain()
		if r.tasks.Try(m.s.limits.Background, m.s.timeouts.Ending, func(ctx context.Context) {
			defer m.b.Release()
			see(ctx)
		}) {
			return true
		}
		m.b.Release()
	}
	if holder != nil {
		r.addLeak(m, holder, leakBusy, defaultBlock)
	}
	return false
}

// unwritten sees to a hand-over by push whose decode leg has failed by itself though prefill has answered. If prefill's run is
// over it is decode that may hold blocks; else prefill, if decode's leg had not begun.
func (r *reclaimer) unwritten(ctx context.Context, m *job) {
	var look looking
	run := runUnknown
	for range 4 {
		if run = look.at(ctx, m.s, m.prefill, m.h.Endpoint); run != runUnknown {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(monitor.RefusedFor):
		}
	}
	if run == runOver {
		r.settle(ctx, m)
		return
	}
	r.giveBack(ctx, m, prefillHeld{answered: true, asked: true}, possible)
}

// rests reports whether prefill has nothing in hand of what it was asked before the end of m: it has noticed that end, and says that it
// has nothing in hand at all.
func (r *reclaimer) rests(ctx context.Context, m *job) bool {
	if !r.wait(ctx, m.s, m.prefill, m.model, m.closed) {
		return false
	}
	l, ok := r.monitor.LoadOf(ctx, m.prefill)
	return ok && l.Running+l.Waiting == 0
}

// tellNamed tells prefill that what it may hold for a leg that was ended was taken. That is safe only when prefill has
// noticed the end: it would give up what it still works on.
func (r *reclaimer) tellNamed(ctx context.Context, m *job) {
	if !r.rests(ctx, m) {
		return
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		r.log.Info("notification", "engine", m.prefill.Name, "transfer_id", m.h.Transfer, "err", err)
	}
}

// untellable says why a decode engine could not be told that it need not wait any more; leakNone if it could.
func (s *reclaimSnapshot) untellable(d *fleet.Engine) leakReason {
	return decodeHeld{agent: s.agent != nil, channel: d.ChannelReport().Run != "", named: d.Origin.Entry.PlainRequestIDs}.unable()
}

// notifyNamed tells prefill's ranks that what they hold under the name that the request was given was taken.
func (r *reclaimer) notifyNamed(ctx context.Context, m *job) error {
	c := m.prefill.Endpoint.Load()
	if c == nil {
		return errMoved
	}
	to, err := ranksOf(ctx, m.s, m.prefill, c)
	if err != nil {
		return err
	}
	return m.s.agent.Notify(ctx, to, string(m.h.Shape.AppendEngineRequest(nil, m.h.Request))+":1", 1)
}

// clearWithin bounds one wait for prefill to be done with a request whose answer was lost.
const clearWithin = 4 * fenceAfter

// cleared waits until nothing is left at prefill of a request whose leg prefill has ended without a usable answer, and reports whether
// that is shown: a later request that has come to its end shows that it does not run any more. It may have finished first, and hold what
// nobody has fetched under its name, so prefill is told that this was taken, and a later request that it has heard that.
func (r *reclaimer) cleared(ctx context.Context, m *job) bool {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	if m.s.agent == nil || !r.wait(ctx, m.s, m.prefill, m.model, m.closed) {
		return false
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		return false
	}
	return r.wait(ctx, m.s, m.prefill, m.model, time.Now())
}

// taken has a decode engine take what prefill holds.
func (r *reclaimer) taken(ctx context.Context, m *job) bool {
	if m.taking == nil {
		return false
	}
	var l leg.Leg
	l.Open(ctx, m.decode)
	defer l.End()
	return l.AskWhole(&m.taking.Request, m.s.limits.Answer) == leg.Usable
}

// leak counts KV that an engine holds for nobody, until a lease ends or for good.
func (r *reclaimer) leak(ctx context.Context, m *job, holder *fleet.Engine, why leakReason) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	r.addLeak(m, holder, why, blockTokens(ctx, m, holder))
}

// leakIf counts what prefill holds, in doubt as what may be held.
func (r *reclaimer) leakIf(ctx context.Context, m *job, why leakReason, d certainty) {
	switch d {
	case certain:
		r.leak(ctx, m, m.prefill, why)
	case possible:
		r.leak(ctx, m, m.prefill, leakPossible)
	}
}

// addLeak enters what one request has left behind, in blocks of so many tokens.
func (r *reclaimer) addLeak(m *job, holder *fleet.Engine, why leakReason, block int) {
	blocks := (max(m.tokens, 1) + block - 1) / block
	leased := holder == m.prefill
	r.leaks.add(holder, why, blocks, leased, time.Now())
	event, level := "blocks stay held", slog.LevelWarn
	if why == leakPossible {
		event, level = "blocks may stay held", slog.LevelInfo
	} else if !m.counted {
		m.counted = true
		r.leaks.requests.Add(1)
	}
	r.log.Log(context.Background(), level, event, "engine", holder.Name, "blocks", blocks, "why", why.String(), "leased", leased,
		"transfer_id", m.h.Transfer, "prefill", m.prefill.Name, "decode", m.decode.Name)
}

// defaultBlock is how many tokens a block holds, if the engine has not said it: stock vLLM's default.
const defaultBlock = 16

// blockTokens returns how many tokens a block of the engine holds.
func blockTokens(ctx context.Context, m *job, e *fleet.Engine) int {
	recs := m.s.fleet.Records(e)
	if len(recs) == 0 {
		recs = m.s.fleet.Records(m.prefill)
	}
	if len(recs) > 0 && recs[0].Layout.BlockTokens > 0 {
		return recs[0].Layout.BlockTokens * max(1, recs[0].Layout.Physical)
	}
	if at, ok := e.SideChannel(nil); ok && m.s.stock != nil {
		if rec, err := m.s.stock.First(ctx, at); err == nil && rec.Layout.BlockTokens > 0 {
			return rec.Layout.BlockTokens * max(1, rec.Layout.Physical)
		}
	}
	return defaultBlock
}
