package agent

func (g *given) owes(peer peerID) bool {
	for _, o := range g.owed {
		if o == peer {
			return true
		}
	}
	return false
}

// counted says how many owed consumers have come to their end.
func (g *given) counted() int {
	k := 0
	for _, r := range g.regs {
		if r.state == regEnded && g.owes(r.from.peer) {
			k++
		}
	}
	return k
}

// settle reports sent when nothing is owed any more and no write is in progress.
func (p *producer) settle(g *given) {
	switch g.state {
	case givenHeld:
		if !g.known || g.counted() < len(g.owed) {
			return
		}
	case givenDraining:
	default:
		return
	}
	for _, r := range g.regs {
		if r.state != regEnded {
			return
		}
	}
	p.spend(g)
}
