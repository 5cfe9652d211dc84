package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// send says what a transfer wants of a producer: to write, or to stop.
func (c *consumer) send(l *origin) {
	l.again = newBackoff(c.times)
	l.state = originSent
	if l.receipt.failed() {
		l.state, l.heard = originCancelled, c.now
	}
	c.resend(l)
}

func (c *consumer) resend(l *origin) {
	r, do := l.receipt, doRegister
	if l.state == originCancelled {
		do = doCancel
	} else {
		l.unsent = false
	}
	l.wake = c.now + l.again.next()
	c.timers.Set(l)
	c.emit(effect{do: do, peer: l.session.peer, k: l.again.rounds, seq: l.seq, id: r.id, reason: r.reason,
		detail: r.detail, wait: max(r.wake-c.now, 0), expect: r.expect})
}

// recall tells a producer that what it was never asked to write is wanted by nobody, so that it keeps no blocks for
// it. Nothing hangs on the answer: whoever does not give one within Wait and Lease is not asked any more.
func (c *consumer) recall(l *origin) {
	l.held = false
	if l.heard == 0 {
		l.heard = c.now
	}
	switch {
	case l.session.void:
		c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Superseded})
	case l.session.down:
		l.state = originLost
		l.wake = max(c.now+1, l.heard+c.times.Wait+c.times.Lease)
		c.timers.Set(l)
		c.emit(effect{do: doPair, peer: l.session.peer})
	default:
		heard := l.heard
		c.send(l)
		l.heard = heard
	}
}

// lost marks a producer whose connection is gone. In a transfer that still counts on it, a grace begins.
func (c *consumer) lost(l *origin) {
	l.state, l.wake = originLost, 0
	if l.since == 0 {
		l.since = c.now
	}
	switch {
	case l.receipt.state == receiptCollect: // a connection that comes and goes does not begin the grace anew
		l.wake = max(c.now+1, l.since+c.times.Lost)
		c.timers.Set(l)
	case l.unsent:
		l.wake = max(c.now+1, l.heard+c.times.Wait+c.times.Lease)
		c.timers.Set(l)
	}
	if !l.session.void {
		c.emit(effect{do: doPair, peer: l.session.peer})
	}
}
