package core

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// up takes the news that a producer can be reached, for the first time or again.
func (c *Consumer) up(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil || s.void {
		return
	}
	s.down = false
	for _, l := range s.order.All {
		if l.State != originLost || !l.in() || l.held {
			continue
		}
		if l.unsent && l.receipt.failed() {
			c.recall(l)
		} else {
			c.send(l)
		}
	}
	c.stir(s, c.Times.Resend)
}

// down takes the news that the connection to a producer is lost.
func (c *Consumer) down(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		return
	}
	s.down, s.wake, s.Pulse = true, 0, pulse{}
	dangerous := false
	for _, l := range s.order.All {
		if l.in() && l.State != originLost && l.State != OriginFinal {
			c.lost(l)
			dangerous = dangerous || l.receipt.State == ReceiptStop && !l.Fenced && !l.unsent
		}
	}
	if dangerous && !s.void {
		c.emit(Effect{Do: DoFence, Peer: s.Peer})
	}
	if s.keeps() {
		c.part(s)
	}
}

// part seeks the connection to a producer that is asked to keep something. When it has heard nothing for a lease it
// keeps it no more.
func (c *Consumer) part(s *outbound) {
	if s.parted == 0 {
		s.parted = c.Now
	}
	s.wake = max(c.Now+1, s.parted+c.Times.Lease)
	c.timers.Set(s)
	c.emit(Effect{Do: DoPair, Peer: s.Peer})
}

// gone takes the news that an incarnation of a producer is void, and perhaps the proof that its process is dead.
func (c *Consumer) gone(e Event) {
	for _, s := range c.order.All {
		if s.inc == e.Inc && !s.left && (e.Peer == 0 || s.Peer == e.Peer) {
			c.void(s, e)
		}
	}
	if e.Peer != 0 {
		return
	}
	for _, r := range c.pending.All {
		switch {
		case r.inc != e.Inc:
		case r.State == receiptPairing:
			r.unpaired = false
			c.stop(r, kvplane.Superseded, "")
		case r.State == receiptQueued:
			c.lapse(r, kvplane.Superseded, "")
		}
	}
}

// void ends a session: nothing is said in it any more.
func (c *Consumer) void(s *outbound, e Event) {
	s.void, s.down, s.wake = true, true, 0
	c.seekAnew(s, e.Peer)
	s.Proof, s.sealed = s.Proof || e.Proof, s.sealed || e.Fenced
	var drained []*Receipt
	if e.Fenced {
		drained = c.fence(s)
	}
	for _, l := range s.order.All {
		if !l.in() || l.State == OriginFinal { // perhaps only now, with its transfer
			continue
		}
		if l.State != originLost {
			c.lost(l)
		}
		switch {
		case l.receipt.State == receiptCollect:
			c.stop(l.receipt, kvplane.Superseded, "")
		case l.receipt.State == receiptReady || l.unsent: // it could only have notified, or was never asked
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
		case s.Proof || s.sealed || l.Fenced:
			c.dead(l)
		}
	}
	for _, r := range drained {
		if r.State == ReceiptStop {
			c.Check(r)
		}
	}
	c.settle(s)
}

// seekAnew asks whom to tell instead of one rank that is void that a transfer is queued.
func (c *Consumer) seekAnew(s *outbound, rank PeerID) {
	for _, r := range s.queued.All {
		if rank != 0 && r.isQueued() && !r.unpaired {
			r.unpaired = true
			r.waits = slices.DeleteFunc(r.waits, func(other *outbound) bool { return other == s })
			c.emit(Effect{Do: DoSeek, Peer: s.Peer, ID: r.ID})
		}
	}
	s.queued = lineup[*Receipt]{}
}

// dead settles a producer whose process is proven dead: what it had sent may still land until it is drained.
func (c *Consumer) dead(l *Origin) {
	if l.State != OriginFinal {
		if l.Session.sealed && !l.Fenced {
			l.Fenced = true
			l.Session.mute++
		}
		c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Superseded})
	}
}
