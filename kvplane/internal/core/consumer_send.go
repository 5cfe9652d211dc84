package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// send says what a transfer wants of a producer: to write, or to stop.
func (c *Consumer) send(l *ProducerState) {
	l.again = newBackoff(c.Times)
	l.Phase = producerSent
	if l.incoming.failed() {
		l.Phase, l.heard = ProducerCancelled, c.Now
	}
	c.resend(l)
}

func (c *Consumer) resend(l *ProducerState) {
	r, do := l.incoming, DoWriteRequest
	if l.Phase == ProducerCancelled {
		do = DoCancel
	} else {
		l.unsent = false
	}
	l.wake = c.Now + l.again.next()
	c.timers.Set(l)
	c.emit(Effect{Do: do, Peer: l.Session.Peer, Unanswered: l.again.rounds, Seq: l.Seq, ID: r.ID, Reason: r.reason,
		Detail: r.detail, Wait: max(r.wake-c.Now, 0), Expect: r.expect})
}

// cancelUnsent tells a producer that what it was never asked to write is not wanted any more, so that it keeps no blocks for
// it. Nothing depends on the answer: a producer that gives none within Wait and Lease is not asked any more.
func (c *Consumer) cancelUnsent(l *ProducerState) {
	l.heldBack = false
	if l.heard == 0 {
		l.heard = c.Now
	}
	switch {
	case l.Session.void:
		c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
	case l.Session.down:
		l.Phase = producerLost
		l.wake = max(c.Now+1, l.heard+c.Times.Wait+c.Times.Lease)
		c.timers.Set(l)
		c.emit(Effect{Do: DoPair, Peer: l.Session.Peer})
	default:
		heard := l.heard
		c.send(l)
		l.heard = heard
	}
}

// lost marks a producer whose connection is gone. In a transfer that still counts on it, a grace begins.
func (c *Consumer) lost(l *ProducerState) {
	l.Phase, l.wake = producerLost, 0
	if l.since == 0 {
		l.since = c.Now
	}
	switch {
	case l.incoming.State == incomingReceiving: // a connection that comes and goes does not begin the grace anew
		l.wake = max(c.Now+1, l.since+c.Times.Lost)
		c.timers.Set(l)
	case l.unsent:
		l.wake = max(c.Now+1, l.heard+c.Times.Wait+c.Times.Lease)
		c.timers.Set(l)
	}
	if !l.Session.void {
		c.emit(Effect{Do: DoPair, Peer: l.Session.Peer})
	}
}
