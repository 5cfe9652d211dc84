package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// close begins the orderly end of this agent: no consumer is served any more, and each session gets BYE when none of its
// writes is in progress.
func (p *Producer) close(e Event) {
	if p.closing {
		p.drop(e, DropRepeat)
		return
	}
	p.closing = true
	for _, g := range p.held.All {
		if g.State == OutgoingHeld {
			p.failTransfer(g, kvplane.Closing, "")
		}
	}
	for _, s := range p.order.All {
		if s.forgotten {
			continue
		}
		for _, r := range s.Order.All {
			if r.in() && (r.State == requestWaiting || r.State == requestPairing) {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}, true)
			}
		}
		p.sayBye(s)
	}
}

// sayBye says goodbye to a session, once, when nothing that was posted for it is in progress.
func (p *Producer) sayBye(s *consumerSession) {
	if p.closing && !s.byeSent && !s.void && s.writing == 0 {
		s.byeSent = true
		p.emit(Effect{Do: DoBye, Peer: s.peer})
	}
}
