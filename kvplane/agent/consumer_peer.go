package agent

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// up takes the news that a producer can be reached, for the first time or again.
func (c *consumer) up(e event) {
	s := c.sessions[e.peer]
	if s == nil || s.void {
		return
	}
	s.down = false
	for _, l := range s.order.all {
		if l.state != originLost || !l.in() || l.held {
			continue
		}
		if l.unsent && l.receipt.failed() {
			c.recall(l)
		} else {
			c.send(l)
		}
	}
	c.stir(s, c.times.Resend)
}

// down takes the news that the connection to a producer is lost.
func (c *consumer) down(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		return
	}
	s.down, s.wake, s.pulse = true, 0, pulse{}
	dangerous := false
	for _, l := range s.order.all {
		if l.in() && l.state != originLost && l.state != originFinal {
			c.lost(l)
			dangerous = dangerous || l.receipt.state == receiptStop && !l.fenced && !l.unsent
		}
	}
	if dangerous && !s.void {
		c.emit(effect{do: doFence, peer: s.peer})
	}
	if s.keeps() {
		c.part(s)
	}
}

// part seeks the connection to a producer that is asked to keep something. When it has heard nothing for a lease it
// keeps it no more.
func (c *consumer) part(s *outbound) {
	if s.parted == 0 {
		s.parted = c.now
	}
	s.wake = max(c.now+1, s.parted+c.times.Lease)
	c.timers.Set(s)
	c.emit(effect{do: doPair, peer: s.peer})
}

// gone takes the news that an incarnation of a producer is void, and perhaps the proof that its process is dead.
func (c *consumer) gone(e event) {
	for _, s := range c.order.all {
		if s.inc == e.inc && !s.left && (e.peer == 0 || s.peer == e.peer) {
			c.void(s, e)
		}
	}
	if e.peer != 0 {
		return
	}
	for _, r := range c.pending.all {
		switch {
		case r.inc != e.inc:
		case r.state == receiptPairing:
			r.unpaired = false
			c.stop(r, kvplane.Superseded, "")
		case r.state == receiptQueued:
			c.lapse(r, kvplane.Superseded, "")
		}
	}
}

// void ends a session: nothing is said in it any more.
func (c *consumer) void(s *outbound, e event) {
	s.void, s.down, s.wake = true, true, 0
	c.seekAnew(s, e.peer)
	s.proof, s.sealed = s.proof || e.proof, s.sealed || e.fenced
	var drained []*receipt
	if e.fenced {
		drained = c.fence(s)
	}
	for _, l := range s.order.all {
		if !l.in() || l.state == originFinal { // perhaps only now, with its transfer
			continue
		}
		if l.state != originLost {
			c.lost(l)
		}
		switch {
		case l.receipt.state == receiptCollect:
			c.stop(l.receipt, kvplane.Superseded, "")
		case l.receipt.state == receiptReady || l.unsent: // it could only have notified, or was never asked
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
		case s.proof || s.sealed || l.fenced:
			c.dead(l)
		}
	}
	for _, r := range drained {
		if r.state == receiptStop {
			c.check(r)
		}
	}
	c.settle(s)
}

// seekAnew asks whom to tell instead of one rank that is void that a transfer is queued.
func (c *consumer) seekAnew(s *outbound, rank peerID) {
	for _, r := range s.queued.all {
		if rank != 0 && r.isQueued() && !r.unpaired {
			r.unpaired = true
			r.waits = slices.DeleteFunc(r.waits, func(other *outbound) bool { return other == s })
			c.emit(effect{do: doSeek, peer: s.peer, id: r.id})
		}
	}
	s.queued = lineup[*receipt]{}
}

// dead settles a producer whose process is proven dead: what it had sent may still land until it is drained.
func (c *consumer) dead(l *origin) {
	if l.state != originFinal {
		if l.session.sealed && !l.fenced {
			l.fenced = true
			l.session.mute++
		}
		c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Superseded})
	}
}
