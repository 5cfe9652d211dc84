package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// beat takes what D still waits for: it extends the leases of these transfers, and is answered with what D may have
// missed. The answer is sent even if it is empty, for it also says that this agent lives.
func (p *Producer) beat(e Event) {
	s := p.session(e)
	p.raise(s, e.Msg.Floor)
	for i := range e.Msg.Beats {
		p.pulse(s, &e.Msg.Beats[i])
	}
	p.emit(Effect{Do: DoBeatAck, Peer: s.peer, Beats: p.beats})
}

// pulse takes one line of a beat and adds its answer where there is one.
func (p *Producer) pulse(s *inbound, b *wire.Beat) {
	answer := wire.Beat{Seq: b.Seq, ID: b.ID}
	g := p.Given[b.ID] // of a transfer that D has given up the id is zero: nothing is kept for it
	if g != nil {
		p.extend(g, s)
	}
	if b.Seq == 0 { // queued on D: only bad news is worth a word
		switch {
		case g != nil && g.State >= givenDraining:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: g.late()}
		case p.closing:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}
		default:
			return
		}
		p.beats = append(p.beats, answer)
		return
	}
	r := s.Regs[b.Seq]
	switch {
	case r == nil && b.Seq < s.Floor:
		return // a late one
	case r == nil && (b.Seq < s.Low || p.closing):
		answer.Status = s.forgotten(b.Seq)
		if p.closing && b.Seq >= s.Low {
			answer.Status.Reason = kvplane.Closing
		}
	case r == nil: // D sends it again
	case r.given != g && b.ID != kvplane.TransferID{}:
		p.emit(Effect{Do: DoDrop, Peer: s.peer, Seq: b.Seq, ID: b.ID, Drop: dropConflict})
		return
	case r.State == RegEnded || r.State != r.beaten:
		r.beaten = r.State
		answer.Status = r.Status
		answer.Status.Detail = ""
	default:
		return
	}
	p.beats = append(p.beats, answer)
}

// close begins the orderly end of this agent: nobody is served any more, and each session is told when none of its
// writes is in progress.
func (p *Producer) close(e Event) {
	if p.closing {
		p.drop(e, DropRepeat)
		return
	}
	p.closing = true
	for _, g := range p.held.All {
		if g.State == GivenHeld {
			p.lose(g, kvplane.Closing, "")
		}
	}
	for _, s := range p.order.All {
		if s.left {
			continue
		}
		for _, r := range s.Order.All {
			if r.in() && (r.State == regWaiting || r.State == regPairing) {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}, true)
			}
		}
		p.part(s)
	}
}

// part says goodbye to a session, once, when nothing that was posted for it is in progress.
func (p *Producer) part(s *inbound) {
	if p.closing && !s.parted && !s.void && s.writing == 0 {
		s.parted = true
		p.emit(Effect{Do: DoBye, Peer: s.peer})
	}
}
