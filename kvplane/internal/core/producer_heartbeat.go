package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// heartbeat takes what D still waits for: it extends the leases of these transfers, and is answered with what D may have
// missed. The answer is sent even if it is empty, for it also says that this agent lives.
func (p *Producer) heartbeat(e Event) {
	s := p.session(e)
	p.raiseLowWater(s, e.Msg.LowWater)
	for i := range e.Msg.Lines {
		p.heartbeatLine(s, &e.Msg.Lines[i])
	}
	p.emit(Effect{Do: DoHeartbeatAck, Peer: s.peer, Lines: p.lines})
}

// heartbeatLine takes one line of a heartbeat and adds its answer where there is one.
func (p *Producer) heartbeatLine(s *consumerSession, b *wire.HeartbeatLine) {
	answer := wire.HeartbeatLine{Seq: b.Seq, ID: b.ID}
	g := p.Outgoing[b.ID] // of a transfer that D has given up the id is zero: nothing is kept for it
	if g != nil {
		p.extend(g, s)
	}
	if b.Seq == 0 { // queued on D: answered only if the transfer is not kept
		switch {
		case g != nil && g.State >= outgoingDraining:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: g.lateReason()}
		case p.closing:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}
		default:
			return
		}
		p.lines = append(p.lines, answer)
		return
	}
	r := s.Requests[b.Seq]
	switch {
	case r == nil && b.Seq < s.LowWater:
		return // a late one
	case r == nil && (b.Seq < s.NeverStartBelow || p.closing):
		answer.Status = s.statusOfForgotten(b.Seq)
		if p.closing && b.Seq >= s.NeverStartBelow {
			answer.Status.Reason = kvplane.Closing
		}
	case r == nil: // D sends it again
	case r.outgoing != g && b.ID != kvplane.TransferID{}:
		p.emit(Effect{Do: DoDrop, Peer: s.peer, Seq: b.Seq, ID: b.ID, Drop: dropConflict})
		return
	case r.State == RequestEnded || r.State != r.lastReported:
		r.lastReported = r.State
		answer.Status = r.Status
		answer.Status.Detail = ""
	default:
		return
	}
	p.lines = append(p.lines, answer)
}

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
