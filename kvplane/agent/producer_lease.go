package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// early remembers a transfer that is known only from its consumers; nil if there is no room. The transfer that was
// spent first makes room: it is never offered again, so a registration for it starts nothing.
func (p *producer) early(id kvplane.TransferID) *given {
	for len(p.given)-p.unborn >= p.bounds.given {
		oldest := p.spent.pop()
		if oldest == nil {
			return nil
		}
		if oldest.state == givenSpent && p.given[oldest.id] == oldest {
			p.clear(oldest)
		}
	}
	g := &given{id: id, state: givenEarly}
	p.given[id] = g
	return g
}

// extend keeps a held transfer for a consumer that has said that it will come, or is here. It never shortens a lease.
func (p *producer) extend(g *given, s *inbound) {
	if g.state == givenHeld && g.offer.Peer == s.inc {
		g.lease = max(g.lease, p.now+2*p.times.Lease/3) // the alarm stays where it is, and looks again
	}
}

// expire ends a lease, if no beat has extended it.
func (p *producer) expire(g *given) {
	if p.now < g.lease {
		g.wake = g.lease
		p.timers.Set(g)
		return
	}
	p.lose(g, kvplane.LeaseOver, "")
}

// lose gives up a transfer that was offered: nobody is served any more, and the report waits for writes in progress.
func (p *producer) lose(g *given, why kvplane.Reason, detail string) {
	g.state, g.reason, g.detail, g.wake = givenDraining, why, detail, 0
	for _, r := range g.regs {
		if r.state == regWaiting || r.state == regPairing {
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

// spend ends a transfer that had been offered.
func (p *producer) spend(g *given) {
	done := 0
	for _, r := range g.regs {
		if r.state == regEnded && r.status.State == wire.Done && g.owes(r.from.peer) {
			done++
		}
	}
	g.state = givenSpent
	p.keep(g)
	p.emit(effect{do: doReport, report: kvplane.Sent, id: g.id, reason: g.reason, detail: g.detail, k: done, n: len(g.owed), offer: g.offer})
}

// keep remembers a transfer that nobody is served from as long as a registration of it may still be on its way.
func (p *producer) keep(g *given) {
	g.wake = p.now + p.times.Lease + p.times.Wait
	p.timers.Set(g)
	if g.state == givenSpent && g.offer != nil {
		p.spent.push(g)
	}
}

// retire forgets a transfer that can no longer be registered for.
func (p *producer) retire(g *given) {
	for _, r := range g.regs {
		if r.state != regEnded {
			p.keep(g)
			return
		}
	}
	p.clear(g)
	for first := p.spent.first(); first != nil && p.given[first.id] != first; first = p.spent.first() {
		p.spent.pop()
	}
}

// clear forgets a transfer and what its consumers have registered. That their numbers are never begun again, and
// which may have been written, is remembered in two numbers of each session.
func (p *producer) clear(g *given) {
	g.wake = 0
	delete(p.given, g.id)
	if g.state == givenSpent && g.offer == nil {
		p.unborn--
	}
	for _, r := range g.regs {
		r.wake = 0
		if r.in() {
			delete(r.from.regs, r.seq)
			r.from.low = max(r.from.low, r.seq+1)
			if r.status.State != wire.NotBegun {
				r.from.burnt = max(r.from.burnt, r.seq+1)
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
