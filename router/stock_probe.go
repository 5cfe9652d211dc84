package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// probeStock asks stock engines one after the other: prefill's answer has its coordinates, which decode needs. What
// prefill holds for it is taken by decode, or given back, or counted.
func (r *Router) probeStock(ctx context.Context, c *fleet.Pair, a *attempt, b *openai.Body) error {
	p, d := c.Prefill, c.Decode
	a.prefill.open(ctx, p)
	if err := r.ask(&a.prefill, a.h.Request, b.AppendPrefill(nil, a.h.Request, c.Connector.PrefillParams(nil, &a.h))); err != nil {
		return err
	}
	a.h.KVParams = a.prefill.ans.KVParams
	at, ok := connector.ParseCoordinates(a.h.KVParams)
	switch {
	case a.h.KVParams == nil:
		return r.handsNothing(c, " answers without kv_transfer_params: "+c.Connector.Traits().Stock.Needs)
	case !ok:
		r.strand(ctx, r.probed(c, a), p, strandNoAnswer)
		return r.handsNothing(c, "'s kv_transfer_params do not say where the KV is: "+c.Connector.Traits().Stock.Needs)
	}
	a.h.Endpoint = at
	if p.Endpoint.CompareAndSwap(nil, at) {
		p.PollSoon()
	}
	old := p.Endpoint.Load()
	if err := r.fits(ctx, c, at); err != nil {
		r.giveBack(ctx, r.probed(c, a), leftover{answered: true, taken: true}, doubtNone)
		return err
	}
	body := b.AppendPrefill(nil, a.h.Request, c.Connector.DecodeParams(nil, &a.h))
	if c.Connector.Accept(&a.h, a.h.KVParams) != dispatch.EvPrefillUsable { // with part of the params no engine must be asked
		r.giveBack(ctx, r.probed(c, a), leftover{answered: true, taken: true}, doubtNone)
		return r.handsNothing(c, "'s kv_transfer_params are not those of this connector: "+c.Connector.Traits().Stock.Needs)
	}
	if err := r.take(ctx, c, a, d, body); err != nil {
		return err
	}
	if old != nil && old.EngineID != at.EngineID {
		r.monitor.moved(p, old, at) // the pair is of a run that is over: whoever waits is told
		return fmt.Errorf("router: probe: %w", metadata.ErrForgotten)
	}
	return nil
}

// fits says why decode must not be asked to take what prefill holds, as far as both say what they are.
func (r *Router) fits(ctx context.Context, c *fleet.Pair, at *connector.PrefillEndpoint) error {
	if !at.Moves(c.Connector) {
		return c.CompatibleStock() // the coordinates are known by now
	}
	theirs := r.compat(ctx, c.Decode, nil)
	if theirs == "" {
		return nil
	}
	ours := r.compat(ctx, c.Prefill, at)
	if ours == "" || ours == theirs {
		return nil
	}
	return &metadata.Unpairable{Reason: metadata.Incompatible, Text: fmt.Sprintf("digests are %s and %s", ours, theirs)}
}

// compat returns the compatibility digest of the engine's present run, or "" if it is not to be had.
func (r *Router) compat(ctx context.Context, e *fleet.Engine, c *connector.PrefillEndpoint) string {
	if s := e.ChannelReport(); s.Compatibility != "" || r.now().parts.Stock == nil {
		return s.Compatibility
	}
	at, ok := e.SideChannel(c)
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, r.now().cfg.Timeouts.SideChannelAnswer())
	defer cancel()
	rec, err := r.now().parts.Stock.First(ctx, at)
	if err != nil {
		return ""
	}
	return rec.Compatibility
}

// giveBackWithin is how long decode may be asked again for what prefill holds. It is well within the shortest sensible
// lease: behind the lease's end decode would wait for what nobody has any more.
const giveBackWithin = 10 * time.Second

// take has decode take what prefill holds for a probe. If decode was not asked, or refused to begin, it is asked again
// behind the probe: that is safe, and nobody else would free what prefill holds before its lease ends.
func (r *Router) take(ctx context.Context, c *fleet.Pair, a *attempt, d *fleet.Engine, body []byte) error {
	answered := time.Now()
	v, err := r.askTaking(ctx, c, a, d, body)
	if err == nil || errors.Is(err, errTransferLate) {
		return err
	}
	if v != vRefused && !a.decode.unsent() {
		r.probeLeft(ctx, c, a)
		return err
	}
	again := r.background(func(ctx context.Context) {
		for wait := 100 * time.Millisecond; time.Since(answered)+wait < giveBackWithin; wait *= 2 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				next := &attempt{h: a.h, split: true}
				v, err := r.askTaking(ctx, c, next, d, body)
				if err == nil || errors.Is(err, errTransferLate) {
					return
				}
				if v == vRefused || next.decode.unsent() {
					continue
				}
				r.probeLeft(ctx, c, a)
				return
			}
			break
		}
		r.giveBack(ctx, r.probed(c, a), leftover{answered: true, taken: true}, doubtNone)
	})
	if !again {
		m := r.probed(c, a)
		r.behind(m, nil, m.prefill)
	}
	return err
}

// askTaking asks decode once: two under one id may stay held, or end the engine. With push what prefill holds is on its way then. If it
// does not come in the time of a transfer, as far as decode tells, or in that of the probe, the error is errTransferLate, and what the
// two hold is seen to as it is for a request.
func (r *Router) askTaking(ctx context.Context, c *fleet.Pair, a *attempt, d *fleet.Engine, body []byte) (verdict, error) {
	if !c.Connector.Traits().Writes {
		a.decode.open(ctx, d)
		return r.askOnce(&a.decode, a.h.Request, body, true)
	}
	a.decode.join(&r.cancels, d)
	a.decode.begin()
	a.decodeIs, a.prefill.engine = withAsker, c.Prefill
	late, limit := make(chan struct{}, 1), r.now().cfg.Timeouts.Transfer
	w := &transferWatch{
		r: r, decode: &a.decode, prefill: c.Prefill, endpoint: a.h.Endpoint, due: time.Now().Add(limit), transfer: limit,
		lost: func(reason.Reason) { notify(late) }, pause: watchEvery, asking: r.now().cfg.Timeouts.SideChannelAnswer(),
	}
	type told struct {
		v   verdict
		err error
	}
	came := make(chan told, 1)
	r.tasks.Go("a handshake", func() {
		out := told{vLost, errPanicked}
		defer func() {
			a.decode.kvBecomes(kvOver)
			a.decode.became(decodeEvent(out.v, false).Kind.Leaves())
			came <- out
		}()
		out.v, out.err = r.askOnce(&a.decode, a.h.Request, body, true)
	})
	looks, stop := context.WithCancel(ctx)
	defer stop()
	r.tasks.Go("a look at a transfer", func() { w.run(looks) })
	select {
	case out := <-came:
		return out.v, out.err
	case <-late:
	case <-ctx.Done():
	}
	r.probeLate(c, a)
	return vLate, fmt.Errorf("router: probe: engine %s: %w (%w)", d.Name, errTransferLate, context.DeadlineExceeded)
}

// probeLate sees to what both engines hold for a probe of which nothing has come. Decode's leg is open still.
func (r *Router) probeLate(c *fleet.Pair, a *attempt) {
	a.disown()
	m := r.probed(c, a)
	m.first, m.h.KVParams, m.probe = m.h.KVParams, nil, true
	if a.open() {
		m.leg, m.inTurn = &a.decode, true
	}
	if why := r.untellable(m.decode); why != strandNone {
		a.closeDecode()
		r.behind(m, func(ctx context.Context) {
			r.strand(ctx, m, m.decode, why)
			r.giveBackFirst(ctx, m, doubtMay)
		}, m.decode)
		return
	}
	if !r.behind(m, func(ctx context.Context) { r.settle(ctx, m) }, m.decode) {
		a.closeDecode()
	}
}
