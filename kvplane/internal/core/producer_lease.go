package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// early remembers a transfer that is known only from its consumers; nil if there is no room. The transfer that was
// spent first makes room: it is never offered again, so a registration for it starts nothing.
func (p *Producer) early(id kvplane.TransferID) *given {
	for len(p.Given)-p.unborn >= p.Bounds.Given {
		oldest := p.spent.pop()
		if oldest == nil {
			return nil
		}
		if oldest.State == GivenSpent && p.Given[oldest.ID] == oldest {
			p.clear(oldest)
		}
	}
	g := &given{ID: id, State: GivenEarly}
	p.Given[id] = g
	return g
}

// extend keeps a held transfer for a consumer that has said that it will come, or is here. It never shortens a lease.
func (p *Producer) extend(g *given, s *inbound) {
	if g.State == GivenHeld && g.Offer.Peer == s.inc {
		g.lease = max(g.lease, p.Now+2*p.Times.Lease/3) // the alarm stays where it is, and looks again
	}
}

// expire ends a lease, if no beat has extended it.
func (p *Producer) expire(g *given) {
	if p.Now < g.lease {
		g.wake = g.lease
		p.timers.Set(g)
		return
	}
	p.lose(g, kvplane.LeaseOver, "")
}

// lose gives up a transfer that was offered: nobody is served any more, and the report waits for writes in progress.
func (p *Producer) lose(g *given, why kvplane.Reason, detail string) {
	g.State, g.reason, g.detail, g.wake = givenDraining, why, detail, 0
	for _, r := range g.Regs {
		if r.State == regWaiting || r.State == regPairing {
			p.end(r, wire.Status{State: wire.NotBegun, Reason: g.late(), Detail: detail}, true)
		}
	}
	p.settle(g)
}

// late is what a consumer is told whom a transfer cannot serve any more.
func (g *given) late() kvplane.Reason {
	switch g.reason {
	case 0:
		return kvplane.Spent
	case kvplane.LeaseOver, kvplane.Dead, kvplane.Handshake, kvplane.Closing:
		return g.reason
	}
	return kvplane.Sibling
}

// Spend ends a transfer that had been offered.
func (p *Producer) Spend(g *given) {
	done := 0
	for _, r := range g.Regs {
		if r.State == RegEnded && r.Status.State == wire.Done && g.owes(r.from.peer) {
			done++
		}
	}
	g.State = GivenSpent
	p.keep(g)
	p.emit(Effect{Do: DoReport, Report: kvplane.Sent, ID: g.ID, Reason: g.reason, Detail: g.detail, K: done, N: len(g.Owed), Offer: g.Offer})
}

// keep remembers a transfer that nobody is served from as long as a registration of it may still be on its way.
func (p *Producer) keep(g *given) {
	g.wake = p.Now + p.Times.Lease + p.Times.Wait
	p.timers.Set(g)
	if g.State == GivenSpent && g.Offer != nil {
		p.spent.push(g)
	}
}

// retire forgets a transfer that can no longer be registered for.
func (p *Producer) retire(g *given) {
	for _, r := range g.Regs {
		if r.State != RegEnded {
			p.keep(g)
			return
		}
	}
	p.clear(g)
	for first := p.spent.first(); first != nil && p.Given[first.ID] != first; first = p.spent.first() {
		p.spent.pop()
	}
}

// clear forgets a transfer and what its consumers have registered. That their numbers are never begun again, and
// which may have been written, is remembered in two numbers of each session.
func (p *Producer) clear(g *given) {
	g.wake = 0
	delete(p.Given, g.ID)
	if g.State == GivenSpent && g.Offer == nil {
		p.unborn--
	}
	for _, r := range g.Regs {
		r.wake = 0
		if r.in() {
			delete(r.from.Regs, r.Seq)
			r.from.Low = max(r.from.Low, r.Seq+1)
			if r.Status.State != wire.NotBegun {
				r.from.burnt = max(r.from.burnt, r.Seq+1)
			}
		}
	}
}

// fifo keeps transfers in the order in which they were spent.
type fifo struct {
	all  []*given
	from int
}

func (f *fifo) push(g *given) {
	if f.from > 64 && 2*f.from > len(f.all) {
		n := copy(f.all, f.all[f.from:])
		clear(f.all[n:])
		f.all, f.from = f.all[:n], 0
	}
	f.all = append(f.all, g)
}

// first returns the oldest, nil if there is none.
func (f *fifo) first() *given {
	if f.from == len(f.all) {
		return nil
	}
	return f.all[f.from]
}

// pop removes the oldest and returns it, nil if there is none.
func (f *fifo) pop() *given {
	g := f.first()
	if g != nil {
		f.all[f.from] = nil
		f.from++
	}
	return g
}
