package handshake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// probe is the handshake of one pair: a whole request of two tokens.
type probe struct {
	*Handshaker
	s *Snapshot
	c *fleet.Pair
	b *openai.Body

	h               connector.Handoff
	prefill, decode leg.Leg
}

// probe shakes hands: it sends a whole two-leg request of two tokens. It leaks no block and makes the pair ready.
func (h *Handshaker) probe(ctx context.Context, s *Snapshot, c *fleet.Pair, pair metadata.Pair) error {
	if runs, err := s.Fleet.Runs(c); err != nil || runs != pair {
		return fmt.Errorf("router: probe: %w", handshake.ErrForgotten)
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

// newProbe returns a request of two tokens.
func (h *Handshaker) newProbe(s *Snapshot, c *fleet.Pair) (*probe, error) {
	p := &probe{Handshaker: h, s: s, c: c}
	p.h.Shape = openai.ShapeCompletions
	p.h.Draw()
	prompt := "a b"
	if c.Prefill.Publishes {
		prompt = p.h.Transfer // decode must hold no prefix of it, or it would need nothing of prefill
	}
	b, herr := openai.ParseBody(openai.ShapeCompletions, openai.AppendProbe(nil, c.Model, prompt), s.Bodies)
	if herr != nil {
		return nil, fmt.Errorf("router: probe: %w", herr)
	}
	p.b = b
	return p, nil
}

// ask sends one leg of a probe and reads its answer. The leg must be open.
func (p *probe) ask(l *leg.Leg, body []byte) error {
	_, err := p.askOnce(l, body, false)
	return err
}

// askOnce asks as ask does, and says what the engine's behaviour means. With once the leg is never sent a second time.
func (p *probe) askOnce(l *leg.Leg, body []byte, once bool) (leg.Result, error) {
	defer l.End()
	limit := int(p.s.Config.Limits.Answer)
	v := l.AskWhole(&upstream.Request{Path: openai.PathCompletions, Header: l.Header(nil, p.h.Request, nil, false), Body: body, Once: once}, limit)
	l.ObserveProbe(p.s.Fleet, v)
	if v != leg.Usable {
		return v, probeFailed(l, v)
	}
	return v, nil
}

// errPanicked says that what was to be done was not done to its end.
var errPanicked = errors.New("a panic, which the log has")

// askPrefill asks the prefill leg and reads its answer.
func (p *probe) askPrefill() error {
	return p.ask(&p.prefill, p.b.AppendPrefill(nil, p.h.Request, p.c.Connector.PrefillMembers(nil, &p.h)))
}

// plane asks both engines at once, as every request of connector kvplane does: their agents look each other up
// and connect.
func (p *probe) plane(ctx context.Context, pair metadata.Pair) error {
	c := p.c
	p.h.Prefill, p.h.Decode = pair.Prefill, pair.Decode
	p.h.ValidMS = p.s.Config.Timeouts.Probe.Milliseconds()
	p.transfers.Sign(p.s.Tickets, &p.h, kvtransfer.ContextOf(c.Model, "", nil))
	legs, fail := context.WithCancelCause(ctx) // the first failure ends both
	defer fail(nil)
	p.prefill.Open(legs, c.Prefill)
	p.decode.Open(legs, c.Decode)
	var due *time.Timer // the transfer, from prefill's answer on
	prefilled := make(chan struct{})
	go func() {
		defer close(prefilled)
		err := errPanicked
		defer func() {
			if err != nil {
				fail(err)
			}
		}()
		p.tasks.Recover("a handshake", func() {
			if err = p.askPrefill(); err != nil {
				return
			}
			if c.Connector.Accept(&p.h, p.prefill.Answer.KVParams) != dispatch.EvPrefillUsable {
				err = fmt.Errorf("router: probe: engine %s: answer of another transfer", c.Prefill.Name)
				return
			}
			due = p.decode.CancelAfter(p.s.Config.Timeouts.Transfer, leg.ErrTransferLate)
		})
	}()
	if err := p.ask(&p.decode, p.b.AppendDecode(nil, p.h.Request, c.Connector.DecodeMembers(nil, &p.h))); err != nil {
		fail(err)
	}
	<-prefilled
	if due != nil {
		due.Stop()
	}
	if legs.Err() == nil {
		return nil
	}
	p.transfers.Cancel(p.s.Config, p.s.Token, p.h.Transfer, reason.PairFailed, c.Prefill, c.Decode)
	return context.Cause(legs)
}

// probeFailed says why an engine's answer to a handshake's leg is of no use.
func probeFailed(l *leg.Leg, v leg.Result) error {
	why := handshake.ErrRefused
	if v == leg.Lost || l.Status == 0 {
		why = handshake.ErrUnreachable
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
