package agent

import (
	"slices"

	"pdrouter/kvplane"
)

// queue takes the engine's word that it will expect a transfer later: P is asked to keep it. It ends in an
// expectation, when it is abandoned or lost, or when the engine has not renewed its word for Times.Queue.
func (c *consumer) queue(e event) {
	r := c.receipts[e.id]
	switch {
	case r == nil:
		r = &receipt{id: e.id, state: receiptQueued, inc: e.inc, unpaired: true, until: c.now + c.times.Queue}
		r.wake = r.until
		c.receipts[e.id] = r
		c.pending.add(r, (*receipt).isPending)
		c.timers.Set(r)
		if c.closing {
			c.lapse(r, kvplane.Closing, "")
		}
	case r.state == receiptQueued:
		r.until = c.now + c.times.Queue
	default:
		c.drop(e, dropRepeat)
	}
}

func (c *consumer) expect(e event) {
	r := c.receipts[e.id]
	switch {
	case r == nil:
		r = &receipt{id: e.id}
		c.receipts[e.id] = r
	case r.state == receiptSafe && !r.retired && r.expect == nil:
		// Given up before it was expected: nothing was registered.
		r.retired, r.expect, r.inc = true, e.expect, e.inc
		c.report(r, kvplane.Negative)
		c.report(r, kvplane.Safe)
		r.unpaired = len(r.links) == 0 // P may keep blocks for it
		return
	case r.state == receiptReady || r.state == receiptSafe: // the id has served; these blocks are not registered
		c.drop(e, dropRepeat)
		again := &receipt{id: e.id, expect: e.expect, reason: kvplane.Spent}
		c.report(again, kvplane.Negative)
		c.report(again, kvplane.Safe)
		return
	case r.state != receiptQueued:
		c.drop(e, dropRepeat)
		return
	}
	r.state, r.inc, r.expect, r.waits, r.unpaired = receiptPairing, e.inc, e.expect, nil, true
	r.empty = e.expect.Need[0] == e.expect.Need[1]
	wait := e.expect.Wait
	if wait <= 0 {
		wait = c.times.Wait
	}
	r.wake = c.now + wait
	c.pending.add(r, (*receipt).isPending)
	c.timers.Set(r)
	if c.closing {
		c.stop(r, kvplane.Closing, "")
	}
}

// producers takes who the transfer hears from: they are asked to write, to keep it, or to forget it.
func (c *consumer) producers(e event) {
	r := c.receipts[e.id]
	if r == nil || !r.unpaired {
		c.drop(e, dropState)
		return
	}
	r.unpaired = false
	switch r.state {
	case receiptQueued:
		for _, x := range e.links {
			s := c.session(x, r.inc)
			if slices.Contains(r.waits, s) {
				continue // another rank was rebuilt
			}
			r.waits = append(r.waits, s)
			s.queued.add(r, (*receipt).isQueued)
			if s.down {
				c.part(s)
			} else {
				c.stir(s, c.times.Resend)
			}
		}
	case receiptPairing:
		c.collect(r, e.links)
	case receiptSafe:
		for _, x := range e.links {
			l := c.link(r, c.session(x, r.inc), false)
			l.state = originLost
		}
		c.recallAll(r)
	}
}

// collect registers with everybody the transfer hears from.
func (c *consumer) collect(r *receipt, links []linkTo) {
	r.state = receiptCollect
	for _, x := range links {
		s := c.session(x, r.inc)
		l := c.link(r, s, x.writes)
		if s.down || s.barred {
			l.held = s.barred
			c.lost(l)
		} else {
			c.send(l)
		}
	}
	for _, l := range r.links {
		if l.session.void {
			c.stop(r, kvplane.Superseded, "")
			return
		}
	}
	c.check(r)
}

func (c *consumer) unpaired(e event) {
	r := c.receipts[e.id]
	if r == nil || !r.unpaired {
		c.drop(e, dropState)
		return
	}
	r.unpaired = false
	switch {
	case r.state == receiptPairing:
		c.stop(r, e.reason, e.detail)
	case r.state != receiptQueued:
		c.check(r)
	case e.reason == kvplane.Handshake: // the next attempt may find it
		c.forget(r)
	default:
		c.lapse(r, e.reason, e.detail)
	}
}

// lapse ends the waiting of a queued transfer that P does not keep. An expectation that crosses this is told the same.
func (c *consumer) lapse(r *receipt, why kvplane.Reason, detail string) {
	c.give(r, why, detail)
	c.report(r, kvplane.Negative)
	c.report(r, kvplane.Safe)
}

// give remembers a transfer that was given up before anything was registered.
func (c *consumer) give(r *receipt, why kvplane.Reason, detail string) {
	r.state, r.reason, r.detail, r.waits, r.unpaired = receiptSafe, why, detail, nil, false
	r.wake = c.now + c.times.Wait
	c.timers.Set(r)
}

// abandon is the engine's word that nobody wants the transfer any more, or that another rank has failed.
func (c *consumer) abandon(e event) {
	r := c.receipts[e.id]
	switch {
	case r == nil: // it may be expected later
		r = &receipt{id: e.id}
		c.receipts[e.id] = r
		c.give(r, kvplane.Stopped, e.detail)
	case r.state == receiptQueued:
		waits := r.waits
		c.give(r, kvplane.Stopped, e.detail)
		for _, s := range waits {
			l := c.link(r, s, false)
			l.state = originLost
		}
		c.recallAll(r)
	case r.state == receiptPairing || r.state == receiptCollect:
		c.stop(r, kvplane.Stopped, e.detail)
	default:
		c.drop(e, dropRepeat)
	}
}

// recallAll tells all producers of a transfer for which nothing was registered that it is wanted by nobody.
func (c *consumer) recallAll(r *receipt) {
	for _, l := range r.links {
		c.recall(l)
	}
	c.check(r)
}

// close begins the orderly end of this agent: nothing more is waited for.
func (c *consumer) close(e event) {
	if c.closing {
		c.drop(e, dropRepeat)
		return
	}
	c.closing = true
	for _, r := range c.pending.all {
		switch r.state {
		case receiptQueued:
			c.lapse(r, kvplane.Closing, "")
		case receiptPairing:
			c.stop(r, kvplane.Closing, "")
		}
	}
	for _, s := range c.order.all {
		for _, l := range s.order.all {
			if l.in() && l.receipt.state == receiptCollect {
				c.stop(l.receipt, kvplane.Closing, "")
			}
		}
	}
}
