package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// probe is the handshake of one pair: a whole request of two tokens.
type probe struct {
	*handshaker
	s *snapshot
	c *fleet.Pair
	a *attempt
	b *openai.Body
}

// probe shakes hands: it sends a whole two-leg request of two tokens. It strands no block and warms the pair.
func (h *handshaker) probe(ctx context.Context, s *snapshot, c *fleet.Pair, pair metadata.Pair) error {
	if runs, err := s.fleet.Runs(c); err != nil || runs != pair {
		return fmt.Errorf("router: probe: %w", metadata.ErrForgotten)
	}
	p, err := h.newProbe(s, c)
	if err != nil {
		return err
	}
	if c.Connector.Traits().Mode == dispatch.Together && c.Prefill.Publishes {
		return p.plane(ctx, pair)
	}
	return p.stock(ctx)
}

// newProbe returns a request of two tokens and the attempt that it is.
func (h *handshaker) newProbe(s *snapshot, c *fleet.Pair) (*probe, error) {
	a := &attempt{split: true}
	a.h.Shape = openai.ShapeCompletions
	a.h.Draw()
	prompt := "a b"
	if c.Prefill.Publishes {
		prompt = a.h.Transfer // decode must hold no prefix of it, or it would need nothing of prefill
	}
	b, herr := openai.ParseBody(openai.ShapeCompletions, openai.AppendProbe(nil, c.Model, prompt), s.limits)
	if herr != nil {
		return nil, fmt.Errorf("router: probe: %w", herr)
	}
	return &probe{handshaker: h, s: s, c: c, a: a, b: b}, nil
}

// ask sends one leg of a probe and reads its answer. The leg must be open.
func (p *probe) ask(l *leg.Leg, request string, body []byte) error {
	_, err := p.askOnce(l, request, body, false)
	return err
}

// askOnce asks as ask does, and says what the engine's behaviour means. With once the leg is never sent a second time.
func (p *probe) askOnce(l *leg.Leg, request string, body []byte, once bool) (leg.Result, error) {
	defer l.End()
	limit := p.s.cfg.Limits.Answer
	v := l.AskWhole(&upstream.Request{Path: pathCompletions, Header: l.Header(nil, request, nil, false), Body: body, Once: once}, limit)
	l.ObserveProbe(p.s.fleet, v)
	if v != leg.Usable {
		return v, probeFailed(l, v)
	}
	return v, nil
}

// errPanicked says that what was to be done was not done to its end.
var errPanicked = errors.New("a panic, which the log has")

// prefill asks the prefill leg of a handshake, and then has the transfer be due.
func (p *probe) prefill() error {
	a, b, c := p.a, p.b, p.c
	err := p.ask(&a.prefill, a.h.Request, b.AppendPrefill(nil, a.h.Request, c.Connector.PrefillParams(nil, &a.h)))
	if err != nil {
		return err
	}
	if c.Connector.Accept(&a.h, a.prefill.Answer.KVParams) != dispatch.EvPrefillUsable {
		return fmt.Errorf("router: probe: engine %s: answer of another transfer", c.Prefill.Name)
	}
	a.transferTimer = a.decode.CancelAfter(p.s.cfg.Timeouts.Transfer, leg.ErrTransferLate)
	return nil
}

// plane asks both engines at once, as every request of connector kvplane does: their agents look each other up
// and connect.
func (p *probe) plane(ctx context.Context, pair metadata.Pair) error {
	a, b, c := p.a, p.b, p.c
	a.h.Prefill, a.h.Decode = pair.Prefill, pair.Decode
	a.h.ValidMS = p.s.cfg.Timeouts.Probe.Milliseconds()
	p.tickets.sign(p.s.parts.Tickets, &a.h, c.Prefill, c.Decode, contextOf(c.Model, "", nil))
	legs, fail := context.WithCancelCause(ctx) // the first failure ends both
	defer fail(nil)
	a.prefill.Open(legs, c.Prefill)
	a.decode.Open(legs, c.Decode)
	prefilled := make(chan struct{})
	go func() {
		defer close(prefilled)
		err := errPanicked
		defer func() {
			if err != nil {
				fail(err)
			}
		}()
		p.tasks.Recover("a handshake", func() { err = p.prefill() })
	}()
	if err := p.ask(&a.decode, a.h.Request, b.AppendDecode(nil, a.h.Request, c.Connector.DecodeParams(nil, &a.h))); err != nil {
		fail(err)
	}
	<-prefilled
	a.stopTimers()
	if legs.Err() == nil {
		return nil
	}
	cancelTransfer(p.tasks, p.log, p.s, a.h.Transfer, reason.PairFailed, c.Prefill, c.Decode)
	return context.Cause(legs)
}

// probeFailed says why an engine's answer to a handshake's leg is of no use.
func probeFailed(l *leg.Leg, v leg.Result) error {
	why := metadata.ErrRefused
	if v == leg.Lost || l.Status == 0 {
		why = metadata.ErrUnreachable
	}
	return fmt.Errorf("router: probe: engine %s: status %d: %s: %w", l.Engine.Name, l.Status, l.Reason(), why)
}

// errHandsNothing says that a prefill engine does not hand off what a handshake asked for.
var errHandsNothing = errors.New("router: probe: prefill hands nothing off")

// handsNothing ends a handshake with a prefill engine that hands nothing off: decode serves alone until it is another run.
func (p *probe) handsNothing(why string) error {
	if p.c.Prefill.HandOff.Keeps(why, time.Now()) {
		p.log.Warn("prefill engine hands nothing off", "engine", p.c.Prefill.Name, "err", &metadata.Unpairable{Reason: metadata.NoConnector, Text: p.c.Prefill.Name + why})
	}
	return errHandsNothing
}
