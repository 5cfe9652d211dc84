package core

import "pdrouter/kvplane"

// fenced is the transport's guarantee that nothing lands of what a peer has sent, or sends before it is admitted again.
// That settles every failed transfer; one that still counted on the peer fails. The peer is asked on: it is admitted
// when it has answered for all of them, for only then does it not begin to write for one of them later.
func (c *Consumer) fenced(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropUnknown)
		return
	}
	s.fenced = true
	for _, r := range c.fence(s) {
		if r.State == incomingReceiving {
			c.failTransfer(r, kvplane.PeerGone, "")
		} else {
			c.Check(r)
		}
	}
	c.admitAfterFence(s)
}

// fence marks what a fenced session can no longer do, and returns the transfers that this changes.
func (c *Consumer) fence(s *producerSession) []*IncomingTransfer {
	var changed []*IncomingTransfer
	for _, l := range s.order.All {
		r := l.incoming
		switch {
		case !l.in() || r.State != incomingReceiving && r.State != IncomingFailed:
			continue
		case l.unsent:
			l.heldBack = r.State == incomingReceiving
			continue
		case l.Quiesced():
			continue
		case l.Phase == ProducerFinal:
			c.markFlushed(l)
		default:
			l.Fenced = true
			s.unansweredFenced++
		}
		changed = append(changed, r)
	}
	return changed
}

// admitAfterFence lets a fenced peer write again, if it has answered for everything that was fenced, and sends the write requests that it held back.
func (c *Consumer) admitAfterFence(s *producerSession) {
	if !s.fenced || s.void || s.unansweredFenced > 0 {
		return
	}
	s.fenced = false
	c.emit(Effect{Do: DoAdmit, Peer: s.Peer})
	for _, l := range s.order.All {
		if l.heldBack && l.in() {
			l.heldBack, l.since = false, 0
			if s.down {
				c.lost(l)
			} else {
				c.send(l)
			}
		}
	}
}
