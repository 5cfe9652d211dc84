package kvplane

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
			c.stop(r, Superseded, "")
		case r.state == receiptQueued:
			c.lapse(r, Superseded, "")
		}
	}
}

// void ends a session: nothing is said in it any more.
func (c *consumer) void(s *outbound, e event) {
	s.void, s.down, s.wake = true, true, 0
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
			c.stop(l.receipt, Superseded, "")
		case l.receipt.state == receiptReady || l.unsent: // it could only have notified, or was never asked
			c.final(l, status{state: statusNotBegun, reason: Superseded})
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

// dead settles a producer whose process is proven dead: what it had sent may still land until it is drained.
func (c *consumer) dead(l *origin) {
	if l.state != originFinal {
		if l.session.sealed && !l.fenced {
			l.fenced = true
			l.session.owing++
		}
		c.final(l, status{state: statusFailed, reason: Superseded})
	}
}
