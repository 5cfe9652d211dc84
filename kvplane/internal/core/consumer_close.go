package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// close fails everything that is under way, as the agent shuts down.
func (c *Consumer) close(e Event) {
	if c.closing {
		c.drop(e, DropRepeat)
		return
	}
	c.closing = true
	for _, r := range c.pending.All {
		switch r.State {
		case incomingQueued:
			c.expireQueued(r, kvplane.Closing, "")
		case incomingPairing:
			c.failTransfer(r, kvplane.Closing, "")
		}
	}
	for _, s := range c.order.All {
		for _, l := range s.order.All {
			if l.in() && l.incoming.State == incomingReceiving {
				c.failTransfer(l.incoming, kvplane.Closing, "")
			}
		}
	}
}

// bye handles the orderly shutdown of a producer: none of its writes is in progress, and it begins no
// other. A write request that D saw writing counts as failed, as its result is not known. D may have missed that another one was written, so
// that one is flushed too.
func (c *Consumer) bye(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	c.answered(s)
	for _, l := range s.order.All {
		switch {
		case !l.in() || l.Phase == ProducerFinal:
		case l.sawWriting:
			c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Closing})
		default:
			l.mustFlush = true
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing})
		}
	}
	c.expireAllQueued(s, kvplane.Closing, "")
}
