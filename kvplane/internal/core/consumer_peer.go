package core

import (
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
		if l.Phase != producerLost || !l.in() || l.heldBack {
			continue
		}
		if l.unsent && l.incoming.failed() {
			c.cancelUnsent(l)
		} else {
			c.send(l)
		}
	}
	c.scheduleHeartbeat(s, c.Times.Resend)
}

// down takes the news that the connection to a producer is lost.
func (c *Consumer) down(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		return
	}
	s.down, s.wake, s.Heartbeat = true, 0, heartbeat{}
	dangerous := false
	for _, l := range s.order.All {
		if l.in() && l.Phase != producerLost && l.Phase != ProducerFinal {
			c.lost(l)
			dangerous = dangerous || l.incoming.State == IncomingFailed && !l.Fenced && !l.unsent
		}
	}
	if dangerous && !s.void {
		c.emit(Effect{Do: DoFence, Peer: s.Peer})
	}
	if s.keepsQueued() {
		c.awaitReconnect(s)
	}
}

// awaitReconnect seeks the connection to a producer that is asked to keep something. When it has heard nothing for a lease it
// keeps it no more.
func (c *Consumer) awaitReconnect(s *producerSession) {
	if s.disconnectedAt == 0 {
		s.disconnectedAt = c.Now
	}
	s.wake = max(c.Now+1, s.disconnectedAt+c.Times.Lease)
	c.timers.Set(s)
	c.emit(Effect{Do: DoPair, Peer: s.Peer})
}

// gone takes the news that an incarnation of a producer is void, and perhaps the proof that its process is dead.
func (c *Consumer) gone(e Event) {
	for _, s := range c.order.All {
		if s.inc == e.Inc && !s.forgotten {
			c.void(s, e)
		}
	}
	for _, r := range c.pending.All {
		switch {
		case r.inc != e.Inc:
		case r.State == incomingPairing:
			r.producersUnknown = false
			c.failTransfer(r, kvplane.Superseded, "")
		case r.State == incomingQueued:
			c.expireQueued(r, kvplane.Superseded, "")
		}
	}
}

// void ends a session: nothing is said in it any more.
func (c *Consumer) void(s *producerSession, e Event) {
	s.void, s.down, s.wake = true, true, 0
	s.queued = lazyList[*IncomingTransfer]{}
	s.ProvenDead, s.fencedForever = s.ProvenDead || e.Proof, s.fencedForever || e.Fenced
	var drained []*IncomingTransfer
	if e.Fenced {
		drained = c.fence(s)
	}
	for _, l := range s.order.All {
		if !l.in() || l.Phase == ProducerFinal { // perhaps only now, with its transfer
			continue
		}
		if l.Phase != producerLost {
			c.lost(l)
		}
		switch {
		case l.incoming.State == incomingReceiving:
			c.failTransfer(l.incoming, kvplane.Superseded, "")
		case l.incoming.State == incomingReady || l.unsent: // it could only have notified, or was never asked
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
		case s.ProvenDead || s.fencedForever || l.Fenced:
			c.dead(l)
		}
	}
	for _, r := range drained {
		if r.State == IncomingFailed {
			c.Check(r)
		}
	}
	c.settle(s)
}

// dead settles a producer whose process is proven dead: what it had sent may still land until it is flushed.
func (c *Consumer) dead(l *ProducerState) {
	if l.Phase != ProducerFinal {
		if l.Session.fencedForever && !l.Fenced {
			l.Fenced = true
			l.Session.unansweredFenced++
		}
		c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Superseded})
	}
}
