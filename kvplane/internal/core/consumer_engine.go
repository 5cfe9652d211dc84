package core

import (
	"pdrouter/kvplane"
)

// queue notes that the engine will expect a transfer later: P is asked to keep it. It ends in an
// expectation, when it is abandoned or lost, or when the engine has not repeated the call for Times.Queue.
func (c *Consumer) queue(e Event) {
	r := c.Incoming[e.ID]
	switch {
	case r == nil:
		r = &IncomingTransfer{ID: e.ID, State: incomingQueued, inc: e.Inc, producersUnknown: true, until: c.Now + c.Times.Queue}
		r.wake = r.until
		c.Incoming[e.ID] = r
		c.pending.add(r, (*IncomingTransfer).isPending)
		c.timers.Set(r)
		if c.closing {
			c.expireQueued(r, kvplane.Closing, "")
		}
	case r.State == incomingQueued:
		r.until = c.Now + c.Times.Queue
	default:
		c.drop(e, DropRepeat)
	}
}

func (c *Consumer) expect(e Event) {
	r := c.Incoming[e.ID]
	switch {
	case r == nil:
		r = &IncomingTransfer{ID: e.ID}
		c.Incoming[e.ID] = r
	case r.State == incomingReusable && !r.retired && r.expect == nil:
		// Given up before it was expected: no write request was sent.
		r.retired, r.expect, r.inc = true, e.Expect, e.Inc
		c.report(r, kvplane.Failed)
		c.report(r, kvplane.Reusable)
		r.producersUnknown = len(r.Producers) == 0 // P may keep blocks for it
		return
	case r.State == incomingReady || r.State == incomingReusable: // the id has served; no write request is sent for these blocks
		c.drop(e, DropRepeat)
		again := &IncomingTransfer{ID: e.ID, expect: e.Expect, reason: kvplane.Spent}
		c.report(again, kvplane.Failed)
		c.report(again, kvplane.Reusable)
		return
	case r.State != incomingQueued:
		c.drop(e, DropRepeat)
		return
	}
	r.State, r.inc, r.expect, r.keepers, r.producersUnknown = incomingPairing, e.Inc, e.Expect, nil, true
	r.empty = e.Expect.Need[0] == e.Expect.Need[1]
	wait := e.Expect.Wait
	if wait <= 0 {
		wait = c.Times.Wait
	}
	r.wake = c.Now + wait
	c.pending.add(r, (*IncomingTransfer).isPending)
	c.timers.Set(r)
	if c.closing {
		c.failTransfer(r, kvplane.Closing, "")
	}
}

// producers takes the list of producers of a transfer: they are asked to write, to keep it, or to forget it.
func (c *Consumer) producers(e Event) {
	r := c.Incoming[e.ID]
	if r == nil || !r.producersUnknown {
		c.drop(e, dropState)
		return
	}
	r.producersUnknown = false
	switch r.State {
	case incomingQueued:
		for _, x := range e.Links {
			s := c.session(x, r.inc)
			r.keepers = append(r.keepers, s)
			s.queued.add(r, (*IncomingTransfer).isQueued)
			if s.down {
				c.awaitReconnect(s)
			} else {
				c.scheduleHeartbeat(s, c.Times.Resend)
			}
		}
	case incomingPairing:
		c.sendWriteRequests(r, e.Links)
	case incomingReusable:
		for _, x := range e.Links {
			l := c.link(r, c.session(x, r.inc), false)
			l.Phase = producerLost
		}
		c.cancelAllUnsent(r)
	}
}

// sendWriteRequests sends a write request to every producer of the transfer.
func (c *Consumer) sendWriteRequests(r *IncomingTransfer, links []Link) {
	r.State = incomingReceiving
	for _, x := range links {
		s := c.session(x, r.inc)
		l := c.link(r, s, x.Writes)
		if s.down || s.fenced {
			l.heldBack = s.fenced
			c.lost(l)
		} else {
			c.send(l)
		}
	}
	for _, l := range r.Producers {
		if l.Session.void {
			c.failTransfer(r, kvplane.Superseded, "")
			return
		}
	}
	c.Check(r)
}

func (c *Consumer) unpaired(e Event) {
	r := c.Incoming[e.ID]
	if r == nil || !r.producersUnknown {
		c.drop(e, dropState)
		return
	}
	r.producersUnknown = false
	switch {
	case r.State == incomingPairing:
		c.failTransfer(r, e.Reason, e.Detail)
	case r.State != incomingQueued:
		c.Check(r)
	case e.Reason == kvplane.Handshake: // the next attempt may find it
		c.forget(r)
	default:
		c.expireQueued(r, e.Reason, e.Detail)
	}
}

// expireQueued ends the waiting of a queued transfer that P does not keep. An expectation that comes later ends the same way.
func (c *Consumer) expireQueued(r *IncomingTransfer, why kvplane.Reason, detail string) {
	c.keepTombstone(r, why, detail)
	c.report(r, kvplane.Failed)
	c.report(r, kvplane.Reusable)
}

// keepTombstone remembers a transfer that was given up before a write request was sent.
func (c *Consumer) keepTombstone(r *IncomingTransfer, why kvplane.Reason, detail string) {
	r.State, r.reason, r.detail, r.keepers, r.producersUnknown = incomingReusable, why, detail, nil, false
	r.wake = c.Now + c.Times.Wait
	c.timers.Set(r)
}

// abandon ends a transfer that the engine does not want any more, or that has failed on another rank.
func (c *Consumer) abandon(e Event) {
	r := c.Incoming[e.ID]
	switch {
	case r == nil: // it may be expected later
		r = &IncomingTransfer{ID: e.ID}
		c.Incoming[e.ID] = r
		c.keepTombstone(r, kvplane.Stopped, e.Detail)
	case r.State == incomingQueued:
		waits := r.keepers
		c.keepTombstone(r, kvplane.Stopped, e.Detail)
		for _, s := range waits {
			l := c.link(r, s, false)
			l.Phase = producerLost
		}
		c.cancelAllUnsent(r)
	case r.State == incomingPairing || r.State == incomingReceiving:
		c.failTransfer(r, kvplane.Stopped, e.Detail)
	default:
		c.drop(e, DropRepeat)
	}
}

// cancelAllUnsent tells all producers of a transfer for which no write request was sent that it is not wanted any more.
func (c *Consumer) cancelAllUnsent(r *IncomingTransfer) {
	for _, l := range r.Producers {
		c.cancelUnsent(l)
	}
	c.Check(r)
}
