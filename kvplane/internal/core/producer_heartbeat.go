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
