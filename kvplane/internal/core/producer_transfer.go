package core

func (g *given) owes(peer PeerID) bool {
	for _, o := range g.Owed {
		if o == peer {
			return true
		}
	}
	return false
}

// counted says how many owed consumers have come to their end.
func (g *given) counted() int {
	k := 0
	for _, r := range g.Regs {
		if r.State == RegEnded && g.owes(r.from.peer) {
			k++
		}
	}
	return k
}

// settle reports sent when nothing is owed any more and no write is in progress.
func (p *Producer) settle(g *given) {
	switch g.State {
	case GivenHeld:
		if !g.Known || g.counted() < len(g.Owed) {
			return
		}
	case givenDraining:
	default:
		return
	}
	for _, r := range g.Regs {
		if r.State != RegEnded {
			return
		}
	}
	p.Spend(g)
}
