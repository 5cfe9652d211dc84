package reclaim

import (
	"context"
	"log/slog"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
)

// Start runs what sees to what a request left, after it. If too much runs on already it reports false, and counts
// what holder holds for sure, if it is not nil.
func (r *Reclaimer) Start(m *Job, see func(context.Context), holder *fleet.Engine) bool {
	if see != nil {
		m.Body.Retain()
		if r.tasks.Try(m.Snapshot.Limits.Background, m.Snapshot.Timeouts.Ending, func(ctx context.Context) {
			defer m.Body.Release()
			see(ctx)
		}) {
			return true
		}
		m.Body.Release()
	}
	if holder != nil {
		r.addLeak(m, holder, CauseBusy, defaultBlock)
	}
	return false
}

// Unwritten sees to a hand-over by push whose decode leg has failed by itself though prefill has answered. If prefill's run is
// over it is decode that may hold blocks; else prefill, if decode's leg had not begun.
func (r *Reclaimer) Unwritten(ctx context.Context, m *Job) {
	var check livenessCheck
	run := runUnknown
	for range 4 {
		if run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint); run != runUnknown {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(monitor.RefusedFor):
		}
	}
	if run == runOver {
		r.Settle(ctx, m)
		return
	}
	r.GiveBack(ctx, m, PrefillHeld{Answered: true, Asked: true}, Possible)
}

// rests reports whether prefill has nothing in hand of what it was asked before the end of m: it has noticed that end, and says that it
// has nothing in hand at all.
func (r *Reclaimer) rests(ctx context.Context, m *Job) bool {
	if !r.wait(ctx, m.Snapshot, m.Prefill, m.model, m.Closed) {
		return false
	}
	l, ok := r.monitor.LoadOf(ctx, m.Prefill)
	return ok && l.Running+l.Waiting == 0
}

// TellNamed tells prefill that what it may hold for a leg that was ended was taken. That is safe only when prefill has
// noticed the end: it would give up what it still works on.
func (r *Reclaimer) TellNamed(ctx context.Context, m *Job) {
	if !r.rests(ctx, m) {
		return
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		r.log.Info("notification", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "err", err)
	}
}

// Untellable says why a decode engine could not be told that it need not wait any more; CauseNone if it could.
func (s *Snapshot) Untellable(d *fleet.Engine) Cause {
	return decodeHeld{agent: s.Agent != nil, channel: d.ChannelReport().Run != "", named: d.Origin.Entry.PlainRequestIDs}.unable()
}

// notifyNamed tells prefill's ranks that what they hold under the name that the request was given was taken.
func (r *Reclaimer) notifyNamed(ctx context.Context, m *Job) error {
	c := m.Prefill.Endpoint.Load()
	if c == nil {
		return errMoved
	}
	to, err := ranksOf(ctx, m.Snapshot, m.Prefill, c)
	if err != nil {
		return err
	}
	return m.Snapshot.Agent.Notify(ctx, to, string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request))+":1", 1)
}

// clearWithin bounds one wait for prefill to be done with a request whose answer was lost.
const clearWithin = 4 * BarrierAfter

// cleared waits until nothing is left at prefill of a request whose leg prefill has ended without a usable answer, and reports whether
// that is shown: a later request that has come to its end shows that it does not run any more. It may have finished first, and hold what
// nobody has fetched under its name, so prefill is told that this was taken, and a later request that it has heard that.
func (r *Reclaimer) cleared(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	if m.Snapshot.Agent == nil || !r.wait(ctx, m.Snapshot, m.Prefill, m.model, m.Closed) {
		return false
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		return false
	}
	return r.wait(ctx, m.Snapshot, m.Prefill, m.model, time.Now())
}

// taken has a decode engine take what prefill holds.
func (r *Reclaimer) taken(ctx context.Context, m *Job) bool {
	if m.Taking == nil {
		return false
	}
	var l leg.Leg
	l.Open(ctx, m.Decode)
	defer l.End()
	return l.AskWhole(&m.Taking.Request, m.Snapshot.Limits.Answer) == leg.Usable
}

// CountLeak counts KV that an engine holds for nobody, until a lease ends or for good.
func (r *Reclaimer) CountLeak(ctx context.Context, m *Job, holder *fleet.Engine, why Cause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	r.addLeak(m, holder, why, blockTokens(ctx, m, holder))
}

// leakIf counts what prefill holds, in doubt as what may be held.
func (r *Reclaimer) leakIf(ctx context.Context, m *Job, why Cause, d Certainty) {
	switch d {
	case Certain:
		r.CountLeak(ctx, m, m.Prefill, why)
	case Possible:
		r.CountLeak(ctx, m, m.Prefill, CausePossible)
	}
}

// addLeak enters what one request has left behind, in blocks of so many tokens.
func (r *Reclaimer) addLeak(m *Job, holder *fleet.Engine, why Cause, block int) {
	blocks := (max(m.Tokens, 1) + block - 1) / block
	leased := holder == m.Prefill
	r.Leaks.Add(holder, why, blocks, leased, time.Now())
	event, level := "blocks stay held", slog.LevelWarn
	if why == CausePossible {
		event, level = "blocks may stay held", slog.LevelInfo
	} else if !m.counted {
		m.counted = true
		r.Leaks.Requests.Add(1)
	}
	r.log.Log(context.Background(), level, event, "engine", holder.Name, "blocks", blocks, "why", why.String(), "leased", leased,
		"transfer_id", m.Handoff.Transfer, "prefill", m.Prefill.Name, "decode", m.Decode.Name)
}

// defaultBlock is how many tokens a block holds, if the engine has not said it: stock vLLM's default.
const defaultBlock = 16

// blockTokens returns how many tokens a block of the engine holds.
func blockTokens(ctx context.Context, m *Job, e *fleet.Engine) int {
	recs := m.Snapshot.Fleet.Records(e)
	if len(recs) == 0 {
		recs = m.Snapshot.Fleet.Records(m.Prefill)
	}
	if len(recs) > 0 && recs[0].Layout.BlockTokens > 0 {
		return recs[0].Layout.BlockTokens * max(1, recs[0].Layout.Physical)
	}
	if at, ok := e.SideChannel(nil); ok && m.Snapshot.Stock != nil {
		if rec, err := m.Snapshot.Stock.First(ctx, at); err == nil && rec.Layout.BlockTokens > 0 {
			return rec.Layout.BlockTokens * max(1, rec.Layout.Physical)
		}
	}
	return defaultBlock
}
