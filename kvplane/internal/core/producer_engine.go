package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// offer takes what the engine has finished. Each transfer that is offered for the first time ends in one Sent.
func (p *Producer) offer(e Event) {
	g := p.Given[e.ID]
	switch {
	case g == nil:
		g = &given{ID: e.ID} // the engine's own word: no bound stands in its way
		p.Given[e.ID] = g
	case g.State == GivenSpent && g.Offer == nil: // given up before it was finished
		g.Offer = e.Offer
		p.unborn--
		p.spent.push(g)
		p.emit(Effect{Do: DoReport, Report: kvplane.Sent, ID: g.ID, Reason: g.reason, Detail: g.detail, Offer: g.Offer})
		return
	case g.State != GivenEarly:
		p.drop(e, DropRepeat)
		return
	}
	g.State, g.Offer = GivenHeld, e.Offer
	g.lease = p.Now + p.Times.Lease
	g.wake = g.lease
	p.timers.Set(g)
	p.held.add(g, (*given).isHeld)
	if p.closing {
		p.lose(g, kvplane.Closing, "")
	}
}

// consumers starts the writes, now that it is known whom this rank owes one.
func (p *Producer) consumers(e Event) {
	g := p.Given[e.ID]
	if g == nil || g.State != GivenHeld || g.Known {
		p.drop(e, dropState)
		return
	}
	g.Owed, g.Known = e.Owed, true
	for _, r := range g.Regs { // a consumer that has given up already
		if g.State == GivenHeld && r.State == RegEnded && r.Status.State != wire.Done && g.owes(r.from.peer) {
			p.lose(g, r.Status.Reason, r.Status.Detail)
		}
	}
	for _, r := range g.Regs {
		if g.State == GivenHeld && r.State == regWaiting {
			p.serve(r)
		}
	}
	p.settle(g)
}

func (p *Producer) unpaired(e Event) {
	g := p.Given[e.ID]
	if g == nil || g.State != GivenHeld || g.Known {
		p.drop(e, dropState)
		return
	}
	p.lose(g, e.Reason, e.Detail)
}

// abandon is the engine's word that the request is aborted, will never be finished, is wanted by nobody, or that the
// engine wants its blocks back. While one of them is being written the blocks stay held: Sent says when they are free.
func (p *Producer) abandon(e Event) {
	g := p.Given[e.ID]
	if g == nil {
		g = &given{ID: e.ID, State: GivenEarly}
		p.Given[e.ID] = g
	}
	switch g.State {
	case GivenEarly:
		g.State, g.reason, g.detail = GivenSpent, kvplane.Dead, e.Detail
		p.unborn++
		p.keep(g)
		for _, r := range g.Regs {
			if r.State == regWaiting {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Dead, Detail: e.Detail}, true)
			}
		}
	case GivenHeld:
		p.lose(g, kvplane.Dead, e.Detail)
	default:
		p.drop(e, DropRepeat)
	}
}

// result takes the end of a post: refused, nothing to write, written or broken.
func (p *Producer) result(e Event) {
	s := p.Sessions[e.Peer]
	if s == nil || s.Regs[e.Seq] == nil || s.Regs[e.Seq].State != RegWriting {
		p.drop(e, DropUnknown)
		return
	}
	r := s.Regs[e.Seq]
	switch e.Kind {
	case EvRefused:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: e.Reason, Detail: e.Detail}, true)
	case EvNothing:
		p.end(r, wire.Status{State: wire.Done, Tokens: e.Tokens}, true)
	case EvWritten: // its status went with the write
		p.end(r, wire.Status{State: wire.Done, Tokens: e.Tokens}, false)
	case EvBroken:
		p.end(r, wire.Status{State: wire.Failed, Reason: kvplane.WriteFailed, Detail: e.Detail}, true)
	}
	p.part(s)
	p.leave(s)
}

// reach takes news of the connection to a consumer.
func (p *Producer) reach(e Event) {
	s := p.Sessions[e.Peer]
	if s == nil {
		return
	}
	s.up = e.Kind == EvUp
	if e.Kind == EvDown {
		return
	}
	for _, r := range s.Order.All {
		switch {
		case r.State != regPairing || !r.in():
		case e.Kind == EvUp:
			p.serve(r)
		default:
			p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Handshake, Detail: e.Detail}, true)
		}
	}
}

// gone takes the news that an incarnation of a consumer is void.
func (p *Producer) gone(e Event) {
	for _, s := range p.order.All {
		if s.inc != e.Inc || s.left || e.Peer != 0 && s.peer != e.Peer {
			continue
		}
		s.void = true
		for _, r := range s.Order.All {
			if !r.in() {
				continue
			}
			if r.State == RegWriting {
				r.unheard = true
				continue
			}
			delete(s.Regs, r.Seq)
			r.wake = 0
			if r.State != RegEnded {
				r.unheard = true
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded}, false)
			}
		}
		p.leave(s)
	}
	for _, g := range p.held.All {
		if g.State == GivenHeld && g.Offer.Peer == e.Inc && (e.Peer == 0 || g.owes(e.Peer)) {
			p.lose(g, kvplane.Superseded, "")
		}
	}
}

// leave removes a void session when its last write has ended.
func (p *Producer) leave(s *inbound) {
	if len(s.Regs) == 0 && s.void {
		s.left = true
		delete(p.Sessions, s.peer)
	}
}
