package core

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// early remembers a transfer that is known only from its consumers; nil if there is no room. The oldest transfer that nothing waits for makes
// room: its numbers are never begun again.
func (p *Producer) early(id kvplane.TransferID) *outgoing {
	for len(p.Outgoing)-p.abandonedBeforeOffer >= p.Bounds.Outgoing {
		oldest := p.tombstones.pop()
		if oldest == nil {
			return nil
		}
		if oldest.mayBeForgotten() && p.Outgoing[oldest.ID] == oldest {
			p.clear(oldest)
		}
	}
	g := &outgoing{ID: id, State: OutgoingEarly}
	p.Outgoing[id] = g
	return g
}

// extend keeps a held transfer for a consumer that has said that it will come, or is here. It never shortens a lease.
func (p *Producer) extend(g *outgoing, s *consumerSession) {
	if g.State == OutgoingHeld && g.Offer.Peer == s.inc {
		g.lease = max(g.lease, p.Now+2*p.Times.Lease/3) // the alarm stays where it is, and looks again
	}
}

// expire ends a lease, if no heartbeat has extended it.
func (p *Producer) expire(g *outgoing) {
	if p.Now < g.lease {
		g.wake = g.lease
		p.timers.Set(g)
		return
	}
	p.failTransfer(g, kvplane.LeaseOver, "")
}

// mayBeForgotten says that nothing waits for a transfer: it was offered and is over, or its consumers have given it up before. One that the
// engine gave up before it was finished stays, as its offer must end at once.
func (g *outgoing) mayBeForgotten() bool {
	switch g.State {
	case OutgoingEarly:
		return !slices.ContainsFunc(g.Requests, func(r *writeRequest) bool { return r.State != RequestEnded })
	case OutgoingTombstone:
		return g.Offer != nil
	}
	return false
}

// keepTombstone remembers a transfer that no consumer is served from as long as a write request of it may still be on its way.
func (p *Producer) keepTombstone(g *outgoing) {
	g.wake = p.Now + p.Times.Lease + p.Times.Wait
	p.timers.Set(g)
	if g.mayBeForgotten() {
		p.tombstones.push(g)
	}
}

// retire forgets a transfer for which no write request can come any more.
func (p *Producer) retire(g *outgoing) {
	for _, r := range g.Requests {
		if r.State != RequestEnded {
			p.keepTombstone(g)
			return
		}
	}
	p.clear(g)
	for first := p.tombstones.first(); first != nil && (p.Outgoing[first.ID] != first || !first.mayBeForgotten()); first = p.tombstones.first() {
		p.tombstones.pop()
	}
}

// clear forgets a transfer and its write requests. That their numbers are never begun again, and
// which may have been written, is remembered in two numbers of each session.
func (p *Producer) clear(g *outgoing) {
	g.wake = 0
	delete(p.Outgoing, g.ID)
	if g.State == OutgoingTombstone && g.Offer == nil {
		p.abandonedBeforeOffer--
	}
	for _, r := range g.Requests {
		r.wake = 0
		if r.in() {
			delete(r.from.Requests, r.Seq)
			r.from.NeverStartBelow = max(r.from.NeverStartBelow, r.Seq+1)
			if r.Status.State != wire.NotBegun {
				r.from.maybeWrittenBelow = max(r.from.maybeWrittenBelow, r.Seq+1)
			}
		}
	}
}

// fifo keeps transfers in the order in which they were spent.
type fifo struct {
	all  []*outgoing
	from int
}

func (f *fifo) push(g *outgoing) {
	if f.from > 64 && 2*f.from > len(f.all) {
		n := copy(f.all, f.all[f.from:])
		clear(f.all[n:])
		f.all, f.from = f.all[:n], 0
	}
	f.all = append(f.all, g)
}

// first returns the oldest, nil if there is none.
func (f *fifo) first() *outgoing {
	if f.from == len(f.all) {
		return nil
	}
	return f.all[f.from]
}

// pop removes the oldest and returns it, nil if there is none.
func (f *fifo) pop() *outgoing {
	g := f.first()
	if g != nil {
		f.all[f.from] = nil
		f.from++
	}
	return g
}
