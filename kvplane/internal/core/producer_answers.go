package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// What the owner of a producer asks of it. Nothing of it changes the producer but EndSession and ResumeSession.

// Knows says that an id is the producer's: requested, offered, or ended not long ago.
func (p *Producer) Knows(id kvplane.TransferID) bool { return p.Outgoing[id] != nil }

// Accepted says whether an Offer that it was given was taken, and whether its blocks are held: it may have been given up before.
func (p *Producer) Accepted(o *kvplane.Offer) (taken, held bool) {
	g := p.Outgoing[o.ID]
	if g == nil || g.Offer != o {
		return false, false
	}
	return true, g.State == OutgoingHeld
}

// PendingEngines adds the engines whose write requests are not forgotten: their final STATUS may be sent again.
func (p *Producer) PendingEngines(out map[metadata.Incarnation]bool) {
	for _, s := range p.Sessions {
		if len(s.Requests) > 0 && !s.void {
			out[s.inc] = true
		}
	}
}

// Busy says that a session has write requests.
func (p *Producer) Busy(peer PeerID) bool {
	s := p.Sessions[peer]
	return s != nil && len(s.Requests) > 0
}

// PastSession is what stays of a session that was forgotten: a late write request of it must not be taken for a new one.
type PastSession struct{ lowWater, neverStartBelow, maybeWrittenBelow uint64 }

// EndSession prepares for the end of a session that is not busy and returns what ResumeSession needs if the same agent comes back. Where that is
// lost, what is asked later about numbers that may have been written is answered as if they had been.
func (p *Producer) EndSession(peer PeerID) PastSession {
	s := p.Sessions[peer]
	if s == nil {
		return PastSession{}
	}
	if s.maybeWrittenBelow > s.LowWater {
		p.pastWrittenBelow = max(p.pastWrittenBelow, s.maybeWrittenBelow)
	}
	return PastSession{s.LowWater, s.NeverStartBelow, s.maybeWrittenBelow}
}

// ResumeSession begins a session with an agent that was forgotten, before any event of it.
func (p *Producer) ResumeSession(peer PeerID, inc metadata.Incarnation, past PastSession) {
	s := p.session(Event{Peer: peer, Inc: inc, Down: true})
	s.LowWater, s.NeverStartBelow, s.maybeWrittenBelow = past.lowWater, past.neverStartBelow, past.maybeWrittenBelow
}

// Counts returns how many write requests are not forgotten, how many offers are held, and how many blocks those have.
func (p *Producer) Counts() (requests, offers, held int) {
	for _, in := range p.Sessions {
		requests += len(in.Requests)
	}
	for _, g := range p.Outgoing {
		if g.State == OutgoingHeld || g.State == outgoingDraining {
			offers++
			held += transfer.CountBlocks(g.Offer.Groups)
		}
	}
	return requests, offers, held
}
