package handshake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvwatch"
	"pdrouter/router/leg"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
)

// HandOff sends a whole request of two tokens to two stock engines.
func (h *Handshaker) HandOff(ctx context.Context, s *Snapshot, c *fleet.Pair) error {
	p, err := h.newProbe(s, c)
	if err != nil {
		return err
	}
	return p.stock(ctx)
}

// stock asks stock engines one after the other: prefill's answer has its endpoint, which decode needs. What
// prefill holds for it is taken by decode, or freed, or counted.
func (p *probe) stock(ctx context.Context) error {
	c, e := p.c, p.c.Prefill
	p.prefill.Open(ctx, e)
	if err := p.askPrefill(); err != nil {
		return err
	}
	p.h.KVParams = p.prefill.Answer.KVParams
	at, ok := connector.ParseEndpoint(p.h.KVParams)
	switch {
	case p.h.KVParams == nil:
		return p.handsNothing(" answers without kv_transfer_params: " + c.Connector.Traits().Stock.Needs)
	case !ok:
		p.reclaim.CountLeak(ctx, p.left(), e, reclaim.CauseNoAnswer)
		return p.handsNothing("'s kv_transfer_params do not say where the KV is: " + c.Connector.Traits().Stock.Needs)
	}
	p.h.Endpoint = at
	if e.Endpoint.CompareAndSwap(nil, at) {
		e.PollSoon()
	}
	old := e.Endpoint.Load()
	if err := p.fits(ctx, at); err != nil {
		p.reclaim.FreePrefill(ctx, p.left(), reclaim.PrefillHeld{Answered: true, TakeFailed: true}, reclaim.Certain)
		return err
	}
	body := p.b.AppendPrefill(nil, p.h.Request, c.Connector.DecodeMembers(nil, &p.h))
	if c.Connector.Accept(&p.h, p.h.KVParams) != dispatch.EvPrefillUsable { // with part of the params no engine must be asked
		p.reclaim.FreePrefill(ctx, p.left(), reclaim.PrefillHeld{Answered: true, TakeFailed: true}, reclaim.Certain)
		return p.handsNothing("'s kv_transfer_params are not those of this connector: " + c.Connector.Traits().Stock.Needs)
	}
	if err := p.askDecode(ctx, body); err != nil {
		return err
	}
	if old != nil && old.EngineID != at.EngineID {
		p.monitor.Moved(e, old, at) // the pair is of a run that is over: requests that wait for it are told
		return fmt.Errorf("router: probe: %w", handshake.ErrForgotten)
	}
	return nil
}

// left is what the probe may leak.
func (p *probe) left() *reclaim.Job {
	m := reclaim.NewJob(p.s.Reclaim, &p.h, p.c.Connector, p.c.Model, p.c.Prefill, p.c.Decode)
	m.Tokens = 1
	return m
}

// fits says why decode must not be asked to take what prefill holds, as far as both say what they are.
func (p *probe) fits(ctx context.Context, at *connector.PrefillEndpoint) error {
	c := p.c
	if !at.Moves(c.Connector) {
		return c.CompatibleStock() // the endpoint is known by now
	}
	theirs := p.compat(ctx, c.Decode, nil)
	if theirs == "" {
		return nil
	}
	ours := p.compat(ctx, c.Prefill, at)
	if ours == "" || ours == theirs {
		return nil
	}
	return &metadata.Unpairable{Reason: metadata.Incompatible, Text: fmt.Sprintf("digests are %s and %s", ours, theirs)}
}

// compat returns the compatibility digest of the engine's present run, or "" if it is not to be had.
func (p *probe) compat(ctx context.Context, e *fleet.Engine, c *connector.PrefillEndpoint) string {
	if s := e.ChannelReport(); s.Compatibility != "" || p.s.Stock == nil {
		return s.Compatibility
	}
	at, ok := e.SideChannel(c)
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, p.s.Config.Timeouts.SideChannelAnswer())
	defer cancel()
	rec, err := p.s.Stock.First(ctx, at)
	if err != nil {
		return ""
	}
	return rec.Compatibility
}

// askAgainWithin is how long decode may be asked again for what prefill holds. It is well within the shortest sensible
// lease: after the lease's end decode would wait for KV that is gone.
const askAgainWithin = 10 * time.Second

// askDecode has decode take what prefill holds for a probe. If decode was not asked, or refused to begin, it is asked again
// after the probe: that is safe, and nothing else would free what prefill holds before its lease ends.
func (p *probe) askDecode(ctx context.Context, body []byte) error {
	answered := time.Now()
	v, err := p.askTaking(ctx, body)
	if err == nil || errors.Is(err, leg.ErrTransferLate) {
		return err
	}
	if v != leg.Refused && !p.decode.Unsent() {
		p.reclaim.FreePrefill(ctx, p.left(), reclaim.PrefillHeld{Answered: true, Asked: true}, reclaim.Certain)
		return err
	}
	again := p.tasks.Try(p.s.Config.Limits.Background, p.s.Config.Timeouts.Cleanup, func(ctx context.Context) {
		for wait := 100 * time.Millisecond; time.Since(answered)+wait < askAgainWithin; wait *= 2 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				next := &probe{Handshaker: p.Handshaker, s: p.s, c: p.c, b: p.b, h: p.h}
				v, err := next.askTaking(ctx, body)
				if err == nil || errors.Is(err, leg.ErrTransferLate) {
					return
				}
				if v == leg.Refused || next.decode.Unsent() {
					continue
				}
				p.reclaim.FreePrefill(ctx, p.left(), reclaim.PrefillHeld{Answered: true, Asked: true}, reclaim.Certain)
				return
			}
			break
		}
		p.reclaim.FreePrefill(ctx, p.left(), reclaim.PrefillHeld{Answered: true, TakeFailed: true}, reclaim.Certain)
	})
	if !again {
		m := p.left()
		p.reclaim.Start(m, nil, m.Prefill)
	}
	return err
}

// askTaking asks decode once: two under one id may stay held, or end the engine. With push what prefill holds is on its way then. If it
// does not come in the time of a transfer, as far as decode tells, or in that of the probe, the error is ErrTransferLate, and what the
// two hold is seen to as it is for a request.
func (p *probe) askTaking(ctx context.Context, body []byte) (leg.Result, error) {
	c, d := p.c, p.c.Decode
	if !c.Connector.Traits().Writes {
		p.decode.Open(ctx, d)
		v, err := p.askOnce(&p.decode, body, true)
		if err == nil {
			p.reclaim.Answered(p.s.Reclaim, d, p.decode.Answer.KVParams)
		}
		return v, err
	}
	p.decode.Join(p.cancels, d)
	p.decode.Begin()
	late, limit := make(chan struct{}, 1), p.s.Config.Timeouts.Transfer
	w := &kvwatch.Watch{
		Monitor: p.monitor, Decode: &p.decode, Prefill: c.Prefill, Endpoint: p.h.Endpoint, Due: time.Now().Add(limit), Transfer: limit,
		Lost: func(reason.Reason) { background.Notify(late) }, Asking: p.s.Config.Timeouts.SideChannelAnswer(),
	}
	type told struct {
		v   leg.Result
		err error
	}
	came := make(chan told, 1)
	p.tasks.Go("a handshake", func() {
		out := told{leg.Lost, errPanicked}
		defer func() {
			p.decode.SetKV(leg.KVDone)
			p.decode.Became(out.v.DecodeEvent(false).Kind.LegState())
			came <- out
		}()
		out.v, out.err = p.askOnce(&p.decode, body, true)
	})
	looks, stop := context.WithCancel(ctx)
	defer stop()
	p.tasks.Go("transfer watch", func() { w.Run(looks) })
	select {
	case out := <-came:
		return out.v, out.err
	case <-late:
	case <-ctx.Done():
	}
	p.freeLate()
	return leg.Late, fmt.Errorf("router: probe: engine %s: %w (%w)", d.Name, leg.ErrTransferLate, context.DeadlineExceeded)
}

// freeLate frees what both engines hold for a probe that got no answer in time. Decode's leg is still open.
func (p *probe) freeLate() {
	m := p.left()
	m.FirstParams, m.Handoff.KVParams, m.Probe = m.Handoff.KVParams, nil, true
	if !p.decode.State().Resolved() {
		m.OpenLeg, m.BegunInOrder = &p.decode, true
	}
	if why := m.Snapshot.CannotNotify(m.Decode); why != reclaim.CauseNone {
		p.decode.Cancel(leg.ErrEnded)
		p.reclaim.Start(m, func(ctx context.Context) {
			p.reclaim.CountLeak(ctx, m, m.Decode, why)
			p.reclaim.FreeFirstAnswer(ctx, m, reclaim.Possible)
		}, m.Decode)
		return
	}
	if !p.reclaim.Start(m, func(ctx context.Context) { p.reclaim.FreeDecode(ctx, m) }, m.Decode) {
		p.decode.Cancel(leg.ErrEnded)
	}
}
