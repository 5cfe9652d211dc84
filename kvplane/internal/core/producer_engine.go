package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// offer takes what the engine has finished. Each transfer that is offered for the first time ends in one Sent.
func (p *Producer) offer(e Event) {
	g := p.Outgoing[e.ID]
	switch {
	case g == nil:
		g = &outgoing{ID: e.ID} // the engine's own call: no bound applies
		p.Outgoing[e.ID] = g
	case g.State == OutgoingTombstone && g.Offer == nil: // given up before it was finished
		g.Offer = e.Offer
		p.abandonedBeforeOffer--
		p.tombstones.push(g)
		p.emit(Effect{Do: DoReport, Report: kvplane.Sent, ID: g.ID, Reason: g.reason, Detail: g.detail, Offer: g.Offer})
		return
	case g.State != OutgoingEarly:
		p.drop(e, DropRepeat)
		return
	}
	g.State, g.Offer = OutgoingHeld, e.Offer
	g.lease = p.Now + p.Times.Lease
	g.wake = g.lease
	p.timers.Set(g)
	p.held.add(g, (*outgoing).isHeld)
	if p.closing {
		p.failTransfer(g, kvplane.Closing, "")
	}
}

// consumers starts the writes, now that it is known whom this rank owes one.
func (p *Producer) consumers(e Event) {
	g := p.Outgoing[e.ID]
	if g == nil || g.State != OutgoingHeld || g.OwedKnown {
		p.drop(e, dropState)
		return
	}
	g.Owed, g.OwedKnown = e.Owed, true
	for _, r := range g.Requests { // a consumer that has given up already
		if g.State == OutgoingHeld && r.State == RequestEnded && r.Status.State != wire.Done && g.owes(r.from.peer) {
			p.failTransfer(g, r.Status.Reason, r.Status.Detail)
		}
	}
	for _, r := range g.Requests {
		if g.State == OutgoingHeld && r.State == requestWaiting {
			p.serve(r)
		}
	}
	p.settle(g)
}

func (p *Producer) unpaired(e Event) {
	g := p.Outgoing[e.ID]
	if g == nil || g.State != OutgoingHeld || g.OwedKnown {
		p.drop(e, dropState)
		return
	}
	p.failTransfer(g, e.Reason, e.Detail)
}

// abandon ends a transfer: the request was aborted, will never be finished or is not wanted any more, or the engine
// wants its blocks back. While one of them is being written the blocks stay held: Sent says when they are free.
func (p *Producer) abandon(e Event) {
	g := p.Outgoing[e.ID]
	if g == nil {
		g = &outgoing{ID: e.ID, State: OutgoingEarly}
		p.Outgoing[e.ID] = g
	}
	switch g.State {
	case OutgoingEarly:
		g.State, g.reason, g.detail = OutgoingTombstone, kvplane.Aborted, e.Detail
		p.abandonedBeforeOffer++
		p.keepTombstone(g)
		for _, r := range g.Requests {
			if r.State == requestWaiting {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Aborted, Detail: e.Detail}, true)
			}
		}
	case OutgoingHeld:
		p.failTransfer(g, kvplane.Aborted, e.Detail)
	default:
		p.drop(e, DropRepeat)
	}
}

// result takes the end of a post: refused, nothing to write, written or broken.
func (p *Producer) result(e Event) {
	s := p.Sessions[e.Peer]
	if s == nil || s.Requests[e.Seq] == nil || s.Requests[e.Seq].State != RequestWriting {
		p.drop(e, DropUnknown)
		return
	}
	r := s.Requests[e.Seq]
	switch e.Kind {
	case EvRefused:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: e.Reason, Detail: e.Detail}, true)
	case EvNothing:
		p.end(r, wire.Status{State: wire.Done, Tokens: e.Tokens}, true)
	case EvWritten: // DONE went with the write; it is said again until it is acknowledged
		p.end(r, wire.Status{State: wire.Done, Tokens: e.Tokens}, false)
	case EvBroken:
		p.end(r, wire.Status{State: wire.Failed, Reason: kvplane.WriteFailed, Detail: e.Detail}, true)
	}
	p.sayBye(s)
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
		case r.State != requestPairing || !r.in():
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
		if s.inc != e.Inc || s.forgotten {
			continue
		}
		s.void = true
		for _, r := range s.Order.All {
			if !r.in() {
				continue
			}
			if r.State == RequestWriting {
				r.noStatus = true
				continue
			}
			delete(s.Requests, r.Seq)
			r.wake = 0
			if r.State != RequestEnded {
				r.noStatus = true
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded}, false)
			}
		}
		p.leave(s)
	}
	for _, g := range p.held.All {
		if g.State == OutgoingHeld && g.Offer.Peer == e.Inc {
			p.failTransfer(g, kvplane.Superseded, "")
		}
	}
}

// leave removes a void session when its last write has ended.
func (p *Producer) leave(s *consumerSession) {
	if len(s.Requests) == 0 && s.void {
		s.forgotten = true
		delete(p.Sessions, s.peer)
	}
}
