package embed

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// legOf finds or makes the leg of a transfer that is to become next. An id serves once.
func (s *Scheduler) legOf(t *Transfer, next legPhase, full bool) (*leg, error) {
	switch {
	case s.together == nil:
		return nil, wrong(State, "embed: transfer %s: no rank was heard yet", t.ID)
	case full:
		return nil, wrong(Full, "embed: the orders of this step are full")
	}
	l := s.legs[t.ID]
	switch {
	case l == nil && len(s.legs) >= maxLegs:
		return nil, wrong(Full, "embed: %d transfers are open", len(s.legs))
	case l == nil: // no ticket was asked for
		l = &leg{peer: t.Peer}
		s.legs[t.ID] = l
	case l.phase == legLapsed: // else its failure, when it is polled, would be taken for the new order's
		return nil, wrong(State, "embed: transfer %s has failed while it was queued", t.ID)
	case l.phase > legQueued, l.phase == legQueued && next == legOffered:
		return nil, wrong(Known, "embed: transfer %s is ordered already", t.ID)
	case l.peer != t.Peer:
		return nil, wrong(Argument, "embed: transfer %s: it is with %s, not %s", t.ID, l.peer.ID(), t.Peer.ID())
	}
	l.phase = next
	return l, nil
}

// order notes orders for every rank.
func (s *Scheduler) order(o *sched.Orders) {
	s.together.Order(s.now(), o)
	all := &s.orders
	all.Queue, all.Expect = append(all.Queue, o.Queue...), append(all.Expect, o.Expect...)
	all.Offer, all.Abandon = append(all.Offer, o.Offer...), append(all.Abandon, o.Abandon...)
	s.settle()
}

// Queue says that a decode leg waits for free blocks.
func (s *Scheduler) Queue(id kvplane.TransferID, peer metadata.Incarnation) error {
	if err := checkPeer(id, peer); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.legOf(&Transfer{ID: id, Peer: peer}, legQueued, len(s.orders.Queue) >= maxOrders); err != nil {
		return err
	}
	s.order(&sched.Orders{Queue: []sched.Queued{{ID: id, Peer: peer}}})
	return nil
}

// Expect orders reserved blocks to be written.
func (s *Scheduler) Expect(t *Transfer) error {
	if err := t.check(); err != nil {
		return err
	}
	hash := t.hash()
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.legOf(t, legExpected, s.full(len(s.orders.Expect), t))
	if err != nil {
		return err
	}
	s.listed += transfer.CountBlocks(t.Groups)
	s.order(&sched.Orders{Expect: []kvplane.Expectation{{
		ID: t.ID, Peer: t.Peer, Need: [2]int{t.From, t.To}, Groups: t.Groups, Ticket: l.ticket, Hash: hash, Wait: t.Wait,
	}}})
	return nil
}

// Offer hands over finished blocks.
func (s *Scheduler) Offer(t *Transfer) error {
	if err := t.check(); err != nil {
		return err
	}
	if t.From != 0 {
		return wrong(Argument, "embed: transfer %s: an offer begins with token 0, not %d", t.ID, t.From)
	}
	hash := t.hash()
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.legOf(t, legOffered, s.full(len(s.orders.Offer), t))
	if err != nil {
		return err
	}
	s.listed += transfer.CountBlocks(t.Groups)
	s.order(&sched.Orders{Offer: []kvplane.Offer{{ID: t.ID, Peer: t.Peer, Tokens: t.To, Groups: t.Groups, Ticket: l.ticket, Hash: hash}}})
	return nil
}

// full reports whether a step's orders have no room.
func (s *Scheduler) full(orders int, t *Transfer) bool {
	return orders >= maxOrders || s.listed+transfer.CountBlocks(t.Groups) > maxListed
}

// Cancel gives a transfer up.
func (s *Scheduler) Cancel(id kvplane.TransferID, why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.legs[id]
	if l == nil {
		return nil
	}
	if len(s.orders.Abandon) >= 2*maxOrders {
		return wrong(Full, "embed: the orders of this step are full")
	}
	if !l.cancelled {
		s.tellProducers(id, l)
	}
	s.abandon(id, why)
	if l.phase < legExpected {
		delete(s.legs, id)
	}
	return nil
}

// tellProducers prepares for abandoning a decode leg that was only admitted. No order has named its producers yet; a queue order does. Without it they
// would not hear of the end, and would keep the blocks for a lease.
func (s *Scheduler) tellProducers(id kvplane.TransferID, l *leg) {
	if l.phase == legAdmitted && l.role == metadata.Decode {
		s.order(&sched.Orders{Queue: []sched.Queued{{ID: id, Peer: l.peer}}})
	}
}

func (s *Scheduler) abandon(id kvplane.TransferID, why string) {
	s.order(&sched.Orders{Abandon: []sched.Abandonment{{ID: id, Why: why[:min(len(why), maxWhy)]}}})
}

// CancelledByGateway is what the control routes call.
func (s *Scheduler) CancelledByGateway(id kvplane.TransferID, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.legs[id]
	switch {
	case l == nil:
		s.counts.Strange++
		return
	case l.cancelled:
		return
	}
	l.cancelled = true
	s.results = append(s.results, Result{Kind: Cancelled, ID: id, Text: why})
	s.tellProducers(id, l)
	s.abandon(id, why) // it rings
}

// Orders copies what every rank must be told since the last time into buf; nothing is no bytes.
func (s *Scheduler) Orders(buf []byte, need *int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ordered == nil && !s.orders.Empty() {
		s.ordered = s.orders.Marshal()
		s.orders, s.listed = sched.Orders{}, 0
	}
	if err := Take(s.ordered, buf, need); err != nil {
		return err
	}
	s.ordered = nil
	s.settle()
	return nil
}
