package kvplane

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

// spend ends a transfer that had been offered.
func (p *producer) spend(g *given) {
	done := 0
	for _, r := range g.regs {
		if r.state == regEnded && r.status.state == statusDone && g.owes(r.from.peer) {
			done++
		}
	}
	g.state = givenSpent
	p.keep(g)
	p.emit(effect{do: doReport, report: Sent, id: g.id, reason: g.reason, detail: g.detail, k: done, n: len(g.owed), offer: g.offer})
}

// keep remembers a spent transfer as long as a registration of it may still be on its way.
func (p *producer) keep(g *given) {
	g.wake = p.now + p.times.Lease + p.times.Wait
	p.timers.set(g)
}

// lose gives up a transfer that was offered: nobody is served any more, and the report waits for writes in progress.
func (p *producer) lose(g *given, why Reason, detail string) {
	g.state, g.reason, g.detail, g.wake = givenDraining, why, detail, 0
	tell := why
	if why != LeaseOver && why != Dead && why != Handshake {
		tell = Sibling
	}
	for _, r := range g.regs {
		if r.state == regWaiting || r.state == regPairing {
			p.end(r, status{state: statusNotBegun, reason: tell, detail: detail}, true)
		}
	}
	p.settle(g)
}
