package router

import (
	"context"
	"errors"
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// probe is the handshake of a pair: a whole two-leg request of two tokens. It strands no block and warms the pair.
func (r *Router) probe(ctx context.Context, c *fleet.Pair, pair metadata.Pair) error {
	if runs, err := r.now().fleet.Runs(c); err != nil || runs != pair {
		return fmt.Errorf("router: probe: %w", metadata.ErrForgotten)
	}
	a, b, err := r.newProbe(c)
	if err != nil {
		return err
	}
	if c.Connector.Traits().Mode == dispatch.Together && c.Prefill.Publishes {
		return r.probePlane(ctx, c, pair, a, b)
	}
	return r.probeStock(ctx, c, a, b)
}

// newProbe returns a request of two tokens and the attempt that it is.
func (r *Router) newProbe(c *fleet.Pair) (*attempt, *openai.Body, error) {
	a := &attempt{split: true}
	a.h.Shape = openai.ShapeCompletions
	a.h.Draw()
	prompt := "a b"
	if c.Prefill.Publishes {
		prompt = a.h.Transfer // decode must hold no prefix of it, or it would need nothing of prefill
	}
	b, herr := openai.ParseBody(openai.ShapeCompletions, openai.AppendProbe(nil, c.Model, prompt), r.now().limits)
	if herr != nil {
		return nil, nil, fmt.Errorf("router: probe: %w", herr)
	}
	return a, b, nil
}

// ask sends one leg of a probe and reads its answer. The leg must be open.
func (r *Router) ask(l *call, request string, body []byte) error {
	_, err := r.askOnce(l, request, body, false)
	return err
}

// askOnce asks as ask does, and says what the engine's behaviour means. With once the leg is never sent a second time.
func (r *Router) askOnce(l *call, request string, body []byte, once bool) (verdict, error) {
	defer l.end()
	limit := r.now().cfg.Limits.Answer
	v := l.askWhole(&upstream.Request{Path: pathCompletions, Header: l.header(nil, request, nil, false), Body: body, Once: once}, limit)
	l.observeProbe(r.now().fleet, v)
	if v != vUsable {
		return v, probeFailed(l, v)
	}
	return v, nil
}

// errPanicked says that what was to be done was not done to its end.
var errPanicked = errors.New("a panic, which the log has")

// probePrefill asks the prefill leg of a handshake, and then has the transfer be due.
func (r *Router) probePrefill(c *fleet.Pair, a *attempt, b *openai.Body) error {
	err := r.ask(&a.prefill, a.h.Request, b.AppendPrefill(nil, a.h.Request, c.Connector.PrefillParams(nil, &a.h)))
	if err != nil {
		return err
	}
	if c.Connector.Accept(&a.h, a.prefill.ans.KVParams) != dispatch.EvPrefillUsable {
		return fmt.Errorf("router: probe: engine %s: answer of another transfer", c.Prefill.Name)
	}
	a.transfer = a.decode.later(r.now().cfg.Timeouts.Transfer, errTransferLate)
	return nil
}

// probePlane asks both engines at once, as every request of connector kvplane does: their agents look each other up
// and connect.
func (r *Router) probePlane(ctx context.Context, c *fleet.Pair, pair metadata.Pair, a *attempt, b *openai.Body) error {
	a.h.Prefill, a.h.Decode = pair.Prefill, pair.Decode
	a.h.ValidMS = r.now().cfg.Timeouts.Probe.Milliseconds()
	r.ticket(r.now().parts.Tickets, &a.h, c.Prefill, c.Decode, contextOf(c.Model, "", nil))
	legs, fail := context.WithCancelCause(ctx) // the first failure ends both
	defer fail(nil)
	a.prefill.open(legs, c.Prefill)
	a.decode.open(legs, c.Decode)
	prefilled := make(chan struct{})
	go func() {
		defer close(prefilled)
		err := errPanicked
		defer func() {
			if err != nil {
				fail(err)
			}
		}()
		r.tasks.Recover("a handshake", func() { err = r.probePrefill(c, a, b) })
	}()
	if err := r.ask(&a.decode, a.h.Request, b.AppendDecode(nil, a.h.Request, c.Connector.DecodeParams(nil, &a.h))); err != nil {
		fail(err)
	}
	<-prefilled
	a.stopTimers()
	if legs.Err() == nil {
		return nil
	}
	r.tellCancelled(a.h.Transfer, reason.PairFailed, c.Prefill, c.Decode)
	return context.Cause(legs)
}

// tellCancelled tells engines that nobody wants a transfer any more.
func (r *Router) tellCancelled(transfer string, why reason.Reason, engines ...*fleet.Engine) {
	id, err := kvplane.ParseTransferID(transfer)
	if err != nil {
		return
	}
	for _, e := range engines {
		if e == nil || e.ControlURL == "" {
			continue
		}
		r.background(func(ctx context.Context) {
			if err := kvplane.CancelTransfer(ctx, e.ControlClient, e.ControlURL, controlToken(r.now), id, why.String()); err != nil {
				r.log.Debug("cancel", "engine", e.Name, "transfer_id", transfer, "err", err)
			}
		})
	}
}

// probeFailed says why an engine's answer to a handshake's leg is of no use.
func probeFailed(l *call, v verdict) error {
	why := metadata.ErrRefused
	if v == vLost || l.status == 0 {
		why = metadata.ErrUnreachable
	}
	return fmt.Errorf("router: probe: engine %s: status %d: %s: %w", l.engine.Name, l.status, l.cause(), why)
}
