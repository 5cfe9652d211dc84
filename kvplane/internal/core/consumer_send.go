package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// send says what a transfer wants of a producer: to write, or to stop.
func (c *Consumer) send(l *Origin) {
	l.again = newBackoff(c.Times)
	l.State = originSent
	if l.receipt.failed() {
		l.State, l.heard = OriginCancelled, c.Now
	}
	c.resend(l)
}

func (c *Consumer) resend(l *Origin) {
	r, do := l.receipt, DoRegister
	if l.State == OriginCancelled {
		do = DoCancel
	} else {
		l.unsent = false
	}
	l.wake = c.Now + l.again.next()
	c.timers.Set(l)
	c.emit(Effect{Do: do, Peer: l.Session.Peer, K: l.again.rounds, Seq: l.Seq, ID: r.ID, Reason: r.reason,
		Detail: r.detail, Wait: max(r.wake-c.Now, 0), Expect: r.expect})
}

// recall tells a producer that what it was never asked to write is wanted by nobody, so that it keeps no blocks for
// it. Nothing hangs on the answer: whoever does not give one within Wait and Lease is not asked any more.
func (c *Consumer) recall(l *Origin) {
	l.held = false
	if l.heard == 0 {
		l.heard = c.Now
	}
	switch {
	case l.Session.void:
		c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
	case l.Session.down:
		l.State = originLost
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
func (c *Consumer) lost(l *Origin) {
	l.State, l.wake = originLost, 0
	if l.since == 0 {
		l.since = c.Now
	}
	switch {
	case l.receipt.State == receiptCollect: // a connection that comes and goes does not begin the grace anew
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
