package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// offer takes what the engine has finished. Each transfer that is offered for the first time ends in one Sent.
func (p *producer) offer(e event) {
	g := p.given[e.id]
	switch {
	case g == nil:
		g = &given{id: e.id} // the engine's own word: no bound stands in its way
		p.given[e.id] = g
	case g.state == givenSpent && g.offer == nil: // given up before it was finished
		g.offer = e.offer
		p.unborn--
		p.spent.push(g)
		p.emit(effect{do: doReport, report: kvplane.Sent, id: g.id, reason: g.reason, detail: g.detail, offer: g.offer})
		return
	case g.state != givenEarly:
		p.drop(e, dropRepeat)
		return
	}
	g.state, g.offer = givenHeld, e.offer
	g.lease = p.now + p.times.Lease
	g.wake = g.lease
	p.timers.Set(g)
	p.held.add(g, (*given).isHeld)
	if p.closing {
		p.lose(g, kvplane.Closing, "")
	}
}

// consumers starts the writes, now that it is known whom this rank owes one.
func (p *producer) consumers(e event) {
	g := p.given[e.id]
	if g == nil || g.state != givenHeld || g.known {
		p.drop(e, dropState)
		return
	}
	g.owed, g.known = e.owed, true
	for _, r := range g.regs { // a consumer that has given up already
		if g.state == givenHeld && r.state == regEnded && r.status.State != wire.Done && g.owes(r.from.peer) {
			p.lose(g, r.status.Reason, r.status.Detail)
		}
	}
	for _, r := range g.regs {
		if g.state == givenHeld && r.state == regWaiting {
			p.serve(r)
		}
	}
	p.settle(g)
}

func (p *producer) unpaired(e event) {
	g := p.given[e.id]
	if g == nil || g.state != givenHeld || g.known {
		p.drop(e, dropState)
		return
	}
	p.lose(g, e.reason, e.detail)
}

// abandon is the engine's word that the request is aborted, will never be finished, is wanted by nobody, or that the
// engine wants its blocks back. While one of them is being written the blocks stay held: Sent says when they are free.
func (p *producer) abandon(e event) {
	g := p.given[e.id]
	if g == nil {
		g = &given{id: e.id, state: givenEarly}
		p.given[e.id] = g
	}
	switch g.state {
	case givenEarly:
		g.state, g.reason, g.detail = givenSpent, kvplane.Dead, e.detail
		p.unborn++
		p.keep(g)
		for _, r := range g.regs {
			if r.state == regWaiting {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Dead, Detail: e.detail}, true)
			}
		}
	case givenHeld:
		p.lose(g, kvplane.Dead, e.detail)
	default:
		p.drop(e, dropRepeat)
	}
}

// result takes the end of a post: refused, nothing to write, written or broken.
func (p *producer) result(e event) {
	s := p.sessions[e.peer]
	if s == nil || s.regs[e.seq] == nil || s.regs[e.seq].state != regWriting {
		p.drop(e, dropUnknown)
		return
	}
	r := s.regs[e.seq]
	switch e.kind {
	case evRefused:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: e.reason, Detail: e.detail}, true)
	case evNothing:
		p.end(r, wire.Status{State: wire.Done, Tokens: e.tokens}, true)
	case evWritten: // its status went with the write
		p.end(r, wire.Status{State: wire.Done, Tokens: e.tokens}, false)
	case evBroken:
		p.end(r, wire.Status{State: wire.Failed, Reason: kvplane.WriteFailed, Detail: e.detail}, true)
	}
	p.part(s)
	p.leave(s)
}

// reach takes news of the connection to a consumer.
func (p *producer) reach(e event) {
	s := p.sessions[e.peer]
	if s == nil {
		return
	}
	s.up = e.kind == evUp
	if e.kind == evDown {
		return
	}
	for _, r := range s.order.all {
		switch {
		case r.state != regPairing || !r.in():
		case e.kind == evUp:
			p.serve(r)
		default:
			p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Handshake, Detail: e.detail}, true)
		}
	}
}

// gone takes the news that an incarnation of a consumer is void.
func (p *producer) gone(e event) {
	for _, s := range p.order.all {
		if s.inc != e.inc || s.left || e.peer != 0 && s.peer != e.peer {
			continue
		}
		s.void = true
		for _, r := range s.order.all {
			if !r.in() {
				continue
			}
			if r.state == regWriting {
				r.unheard = true
				continue
			}
			delete(s.regs, r.seq)
			r.wake = 0
			if r.state != regEnded {
				r.unheard = true
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded}, false)
			}
		}
		p.leave(s)
	}
	for _, g := range p.held.all {
		if g.state == givenHeld && g.offer.Peer == e.inc && (e.peer == 0 || g.owes(e.peer)) {
			p.lose(g, kvplane.Superseded, "")
		}
	}
}

// leave removes a void session when its last write has ended.
func (p *producer) leave(s *inbound) {
	if len(s.regs) == 0 && s.void {
		s.left = true
		delete(p.sessions, s.peer)
	}
}
