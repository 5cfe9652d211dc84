package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// beat takes what D still waits for: it extends the leases of these transfers, and is answered with what D may have
// missed. The answer is sent even if it is empty, for it also says that this agent lives.
func (p *producer) beat(e event) {
	s := p.session(e)
	p.raise(s, e.msg.Floor)
	for i := range e.msg.Beats {
		p.pulse(s, &e.msg.Beats[i])
	}
	p.emit(effect{do: doBeatAck, peer: s.peer, beats: p.beats})
}

// pulse takes one line of a beat and adds its answer where there is one.
func (p *producer) pulse(s *inbound, b *wire.Beat) {
	answer := wire.Beat{Seq: b.Seq, ID: b.ID}
	g := p.given[b.ID] // of a transfer that D has given up the id is zero: nothing is kept for it
	if g != nil {
		p.extend(g, s)
	}
	if b.Seq == 0 { // queued on D: only bad news is worth a word
		switch {
		case g != nil && g.state >= givenDraining:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: g.late()}
		case p.closing:
			answer.Status = wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}
		default:
			return
		}
		p.beats = append(p.beats, answer)
		return
	}
	r := s.regs[b.Seq]
	switch {
	case r == nil && b.Seq < s.floor:
		return // a late one
	case r == nil && (b.Seq < s.low || p.closing):
		answer.Status = s.forgotten(b.Seq)
		if p.closing && b.Seq >= s.low {
			answer.Status.Reason = kvplane.Closing
		}
	case r == nil: // D sends it again
	case r.given != g && b.ID != kvplane.TransferID{}:
		p.emit(effect{do: doDrop, peer: s.peer, seq: b.Seq, id: b.ID, drop: dropConflict})
		return
	case r.state == regEnded || r.state != r.beaten:
		r.beaten = r.state
		answer.Status = r.status
		answer.Status.Detail = ""
	default:
		return
	}
	p.beats = append(p.beats, answer)
}

// close begins the orderly end of this agent: nobody is served any more, and each session is told when none of its
// writes is in progress.
func (p *producer) close(e event) {
	if p.closing {
		p.drop(e, dropRepeat)
		return
	}
	p.closing = true
	for _, g := range p.held.all {
		if g.state == givenHeld {
			p.lose(g, kvplane.Closing, "")
		}
	}
	for _, s := range p.order.all {
		if s.left {
			continue
		}
		for _, r := range s.order.all {
			if r.in() && (r.state == regWaiting || r.state == regPairing) {
				p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing}, true)
			}
		}
		p.part(s)
	}
}

// part says goodbye to a session, once, when nothing that was posted for it is in progress.
func (p *producer) part(s *inbound) {
	if p.closing && !s.parted && !s.void && s.writing == 0 {
		s.parted = true
		p.emit(effect{do: doBye, peer: s.peer})
	}
}
