package kvplane

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
	do := doRegister
	if l.state == originCancelled {
		do = doCancel
	}
	l.wake = c.now + l.again.next()
	c.timers.set(l)
	c.emit(effect{do: do, peer: l.session.peer, k: l.again.rounds, seq: l.seq, id: l.receipt.id, reason: l.receipt.reason,
		detail: l.receipt.detail, expect: l.receipt.expect})
}

// lost marks a producer whose connection is gone. In a transfer that still counts on it, a grace begins.
func (c *consumer) lost(l *origin) {
	l.state, l.wake = originLost, 0
	if l.since == 0 {
		l.since = c.now
	}
	if l.receipt.state == receiptCollect { // a connection that comes and goes does not begin the grace anew
		l.wake = max(c.now+1, l.since+c.times.Lost)
		c.timers.set(l)
	}
	if !l.session.void {
		c.emit(effect{do: doPair, peer: l.session.peer})
	}
}
