package core

import (
	"slices"

	"pdrouter/kvplane"
)

// queue takes the engine's word that it will expect a transfer later: P is asked to keep it. It ends in an
// expectation, when it is abandoned or lost, or when the engine has not renewed its word for Times.Queue.
func (c *Consumer) queue(e Event) {
	r := c.Receipts[e.ID]
	switch {
	case r == nil:
		r = &Receipt{ID: e.ID, State: receiptQueued, inc: e.Inc, unpaired: true, until: c.Now + c.Times.Queue}
		r.wake = r.until
		c.Receipts[e.ID] = r
		c.pending.add(r, (*Receipt).isPending)
		c.timers.Set(r)
		if c.closing {
			c.lapse(r, kvplane.Closing, "")
		}
	case r.State == receiptQueued:
		r.until = c.Now + c.Times.Queue
	default:
		c.drop(e, DropRepeat)
	}
}

func (c *Consumer) expect(e Event) {
	r := c.Receipts[e.ID]
	switch {
	case r == nil:
		r = &Receipt{ID: e.ID}
		c.Receipts[e.ID] = r
	case r.State == receiptSafe && !r.retired && r.expect == nil:
		// Given up before it was expected: nothing was registered.
		r.retired, r.expect, r.inc = true, e.Expect, e.Inc
		c.report(r, kvplane.Negative)
		c.report(r, kvplane.Safe)
		r.unpaired = len(r.Links) == 0 // P may keep blocks for it
		return
	case r.State == receiptReady || r.State == receiptSafe: // the id has served; these blocks are not registered
		c.drop(e, DropRepeat)
		again := &Receipt{ID: e.ID, expect: e.Expect, reason: kvplane.Spent}
		c.report(again, kvplane.Negative)
		c.report(again, kvplane.Safe)
		return
	case r.State != receiptQueued:
		c.drop(e, DropRepeat)
		return
	}
	r.State, r.inc, r.expect, r.waits, r.unpaired = receiptPairing, e.Inc, e.Expect, nil, true
	r.empty = e.Expect.Need[0] == e.Expect.Need[1]
	wait := e.Expect.Wait
	if wait <= 0 {
		wait = c.Times.Wait
	}
	r.wake = c.Now + wait
	c.pending.add(r, (*Receipt).isPending)
	c.timers.Set(r)
	if c.closing {
		c.stop(r, kvplane.Closing, "")
	}
}

// producers takes who the transfer hears from: they are asked to write, to keep it, or to forget it.
func (c *Consumer) producers(e Event) {
	r := c.Receipts[e.ID]
	if r == nil || !r.unpaired {
		c.drop(e, dropState)
		return
	}
	r.unpaired = false
	switch r.State {
	case receiptQueued:
		for _, x := range e.Links {
			s := c.session(x, r.inc)
			if slices.Contains(r.waits, s) {
				continue // another rank was rebuilt
			}
			r.waits = append(r.waits, s)
			s.queued.add(r, (*Receipt).isQueued)
			if s.down {
				c.part(s)
			} else {
				c.stir(s, c.Times.Resend)
			}
		}
	case receiptPairing:
		c.collect(r, e.Links)
	case receiptSafe:
		for _, x := range e.Links {
			l := c.link(r, c.session(x, r.inc), false)
			l.State = originLost
		}
		c.recallAll(r)
	}
}

// collect registers with everybody the transfer hears from.
func (c *Consumer) collect(r *Receipt, links []Link) {
	r.State = receiptCollect
	for _, x := range links {
		s := c.session(x, r.inc)
		l := c.link(r, s, x.Writes)
		if s.down || s.barred {
			l.held = s.barred
			c.lost(l)
		} else {
			c.send(l)
		}
	}
	for _, l := range r.Links {
		if l.Session.void {
			c.stop(r, kvplane.Superseded, "")
			return
		}
	}
	c.Check(r)
}

func (c *Consumer) unpaired(e Event) {
	r := c.Receipts[e.ID]
	if r == nil || !r.unpaired {
		c.drop(e, dropState)
		return
	}
	r.unpaired = false
	switch {
	case r.State == receiptPairing:
		c.stop(r, e.Reason, e.Detail)
	case r.State != receiptQueued:
		c.Check(r)
	case e.Reason == kvplane.Handshake: // the next attempt may find it
		c.forget(r)
	default:
		c.lapse(r, e.Reason, e.Detail)
	}
}

// lapse ends the waiting of a queued transfer that P does not keep. An expectation that crosses this is told the same.
func (c *Consumer) lapse(r *Receipt, why kvplane.Reason, detail string) {
	c.give(r, why, detail)
	c.report(r, kvplane.Negative)
	c.report(r, kvplane.Safe)
}

// give remembers a transfer that was given up before anything was registered.
func (c *Consumer) give(r *Receipt, why kvplane.Reason, detail string) {
	r.State, r.reason, r.detail, r.waits, r.unpaired = receiptSafe, why, detail, nil, false
	r.wake = c.Now + c.Times.Wait
	c.timers.Set(r)
}

// abandon is the engine's word that nobody wants the transfer any more, or that another rank has failed.
func (c *Consumer) abandon(e Event) {
	r := c.Receipts[e.ID]
	switch {
	case r == nil: // it may be expected later
		r = &Receipt{ID: e.ID}
		c.Receipts[e.ID] = r
		c.give(r, kvplane.Stopped, e.Detail)
	case r.State == receiptQueued:
		waits := r.waits
		c.give(r, kvplane.Stopped, e.Detail)
		for _, s := range waits {
			l := c.link(r, s, false)
			l.State = originLost
		}
		c.recallAll(r)
	case r.State == receiptPairing || r.State == receiptCollect:
		c.stop(r, kvplane.Stopped, e.Detail)
	default:
		c.drop(e, DropRepeat)
	}
}

// recallAll tells all producers of a transfer for which nothing was registered that it is wanted by nobody.
func (c *Consumer) recallAll(r *Receipt) {
	for _, l := range r.Links {
		c.recall(l)
	}
	c.Check(r)
}

// close begins the orderly end of this agent: nothing more is waited for.
func (c *Consumer) close(e Event) {
	if c.closing {
		c.drop(e, DropRepeat)
		return
	}
	c.closing = true
	for _, r := range c.pending.All {
		switch r.State {
		case receiptQueued:
			c.lapse(r, kvplane.Closing, "")
		case receiptPairing:
			c.stop(r, kvplane.Closing, "")
		}
	}
	for _, s := range c.order.All {
		for _, l := range s.order.All {
			if l.in() && l.receipt.State == receiptCollect {
				c.stop(l.receipt, kvplane.Closing, "")
			}
		}
	}
}
