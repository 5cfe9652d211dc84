package core

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
