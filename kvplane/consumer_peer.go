package kvplane

// abandon is the engine's word that nobody wants the transfer any more, or that another rank has failed.
func (c *consumer) abandon(e event) {
	r := c.receipts[e.id]
	switch {
	case r == nil: // it may be expected later
		r = &receipt{id: e.id, state: receiptSafe, reason: Stopped, detail: e.detail, wake: c.now + c.times.Wait}
		c.receipts[e.id] = r
		c.timers.set(r)
	case r.state == receiptPairing || r.state == receiptCollect:
		c.stop(r, Stopped, e.detail)
	default:
		c.drop(e, dropRepeat)
	}
}

// up takes the news that a producer can be reached, for the first time or again.
func (c *consumer) up(e event) {
	s := c.sessions[e.peer]
	if s == nil || s.void {
		return
	}
	s.down = false
	for _, seq := range sortedKeys(s.links) {
		if l := s.links[seq]; l != nil && l.state == originLost && !l.held {
			c.send(l)
		}
	}
}

// down takes the news that the connection to a producer is lost.
func (c *consumer) down(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		return
	}
	s.down = true
	dangerous := false
	for _, seq := range sortedKeys(s.links) {
		if l := s.links[seq]; l.state != originLost && l.state != originFinal {
			c.lost(l)
			dangerous = dangerous || l.receipt.state == receiptStop && !l.fenced
		}
	}
	if dangerous && !s.void {
		c.emit(effect{do: doFence, peer: s.peer})
	}
}

// gone takes the news that an incarnation of a producer is void, and perhaps the proof that its process is dead.
func (c *consumer) gone(e event) {
	for _, id := range sortedKeys(c.sessions) {
		s := c.sessions[id]
		if s.inc != e.inc {
			continue
		}
		s.void, s.down = true, true
		s.proof, s.sealed = s.proof || e.proof, s.sealed || e.fenced
		var drained []*receipt
		if e.fenced {
			drained = c.fence(s)
		}
		c.settle(s)
		for _, seq := range sortedKeys(s.links) {
			l := s.links[seq]
			if l == nil || l.state == originFinal { // perhaps only now, with its transfer
				continue
			}
			if l.state != originLost {
				c.lost(l)
			}
			switch {
			case l.receipt.state == receiptCollect:
				c.stop(l.receipt, Superseded, "")
			case l.receipt.state == receiptReady: // it could only have notified
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
	}
	for _, id := range sortedIDs(c.receipts) {
		if r := c.receipts[id]; r.state == receiptPairing && r.inc == e.inc {
			c.stop(r, Superseded, "")
		}
	}
}

// dead settles a producer whose process is proven dead: what it had sent may still land until it is drained.
func (c *consumer) dead(l *origin) {
	if l.state != originFinal {
		l.fenced = l.fenced || l.session.sealed
		c.final(l, status{state: statusFailed, reason: Superseded})
	}
}

// drained takes the word that two whole passes have been made after the net delay.
func (c *consumer) drained(e event) {
	r := c.receipts[e.id]
	if r == nil {
		c.drop(e, dropUnknown)
		return
	}
	for _, l := range r.links {
		if l.session.peer == e.peer && l.seq == e.seq && l.state == originFinal && !l.drained {
			l.drained = true
			c.check(r)
			return
		}
	}
	c.drop(e, dropUnknown)
}

func (c *consumer) alarm(who alarm) {
	switch v := who.(type) {
	case *origin:
		v.wake = 0
		r := v.receipt
		switch {
		case v.state == originSent || v.state == originCancelled:
			c.resend(v)
			if v.state == originCancelled && !v.fenced && c.now-v.heard >= c.times.Lost {
				c.emit(effect{do: doFence, peer: v.session.peer}) // it is silent
			}
		case v.state == originLost && r.state == receiptCollect:
			c.stop(r, PeerGone, "")
		case v.state == originFinal && !v.drained:
			c.emit(effect{do: doDrain, peer: v.session.peer, seq: v.seq, id: r.id})
		}
	case *receipt:
		v.wake = 0
		switch v.state {
		case receiptPairing, receiptCollect:
			c.stop(v, Deadline, "")
		case receiptReady: // only those that never write are left; nothing hangs on them
			for _, l := range v.links {
				if l.state != originFinal {
					c.final(l, status{state: statusNotBegun, reason: Deadline})
				}
			}
		case receiptSafe:
			delete(c.receipts, v.id)
		}
	}
}
