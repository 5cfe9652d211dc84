package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

func (g *outgoing) owes(peer PeerID) bool {
	for _, o := range g.Owed {
		if o == peer {
			return true
		}
	}
	return false
}

// counted says how many owed consumers have come to their end.
func (g *outgoing) counted() int {
	k := 0
	for _, r := range g.Requests {
		if r.State == RequestEnded && g.owes(r.from.peer) {
			k++
		}
	}
	return k
}

// settle reports sent when nothing is owed any more and no write is in progress.
func (p *Producer) settle(g *outgoing) {
	switch g.State {
	case OutgoingHeld:
		if !g.OwedKnown || g.counted() < len(g.Owed) {
			return
		}
	case outgoingDraining:
	case OutgoingEarly:
		if g.mayBeForgotten() { // its consumers would have waited for up to 24 h
			g.wake = min(g.wake, p.Now+p.Times.Lease+p.Times.Wait)
			p.timers.Set(g)
			p.tombstones.push(g)
		}
		return
	default:
		return
	}
	for _, r := range g.Requests {
		if r.State != RequestEnded {
			return
		}
	}
	p.EndTransfer(g)
}

// failTransfer gives up a transfer that was offered: no consumer is served any more, and the report waits for writes in progress.
func (p *Producer) failTransfer(g *outgoing, why kvplane.Reason, detail string) {
	g.State, g.reason, g.detail, g.wake = outgoingDraining, why, detail, 0
	for _, r := range g.Requests {
		if r.State == requestWaiting || r.State == requestPairing {
			p.end(r, wire.Status{State: wire.NotBegun, Reason: g.lateReason(), Detail: detail}, true)
		}
	}
	p.settle(g)
}

// lateReason is the reason for a consumer that a transfer cannot serve any more.
func (g *outgoing) lateReason() kvplane.Reason {
	switch g.reason {
	case 0:
		return kvplane.Spent
	case kvplane.LeaseOver, kvplane.Aborted, kvplane.Handshake, kvplane.Closing:
		return g.reason
	}
	return kvplane.Sibling
}

// EndTransfer ends a transfer that had been offered.
func (p *Producer) EndTransfer(g *outgoing) {
	done := 0
	for _, r := range g.Requests {
		if r.State == RequestEnded && r.Status.State == wire.Done && g.owes(r.from.peer) {
			done++
		}
	}
	g.State = OutgoingTombstone
	p.keepTombstone(g)
	p.emit(Effect{Do: DoReport, Report: kvplane.Sent, ID: g.ID, Reason: g.reason, Detail: g.detail, K: done, N: len(g.Owed), Offer: g.Offer})
}
