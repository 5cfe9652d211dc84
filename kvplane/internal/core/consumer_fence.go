package core

import "pdrouter/kvplane"

// fenced takes the transport's word that nothing which a peer has sent, or sends before it is admitted again, lands.
// That settles every failed transfer; one that still counted on the peer fails. The peer is asked on: it is admitted
// when it has answered for all of them, for only then does it not begin to write for one of them later.
func (c *Consumer) fenced(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropUnknown)
		return
	}
	s.barred = true
	for _, r := range c.fence(s) {
		if r.State == receiptCollect {
			c.stop(r, kvplane.PeerGone, "")
		} else {
			c.Check(r)
		}
	}
	c.admit(s)
}

// fence marks what a fenced session can no longer do, and returns the transfers that this changes.
func (c *Consumer) fence(s *outbound) []*Receipt {
	var changed []*Receipt
	for _, l := range s.order.All {
		r := l.receipt
		switch {
		case !l.in() || r.State != receiptCollect && r.State != ReceiptStop:
			continue
		case l.unsent:
			l.held = r.State == receiptCollect
			continue
		case l.Harmless():
			continue
		case l.State == OriginFinal:
			c.dry(l)
		default:
			l.Fenced = true
			s.mute++
		}
		changed = append(changed, r)
	}
	return changed
}

// admit lets a fenced peer write again, if it has answered for everything that was fenced, and registers what waits.
func (c *Consumer) admit(s *outbound) {
	if !s.barred || s.void || s.mute > 0 {
		return
	}
	s.barred = false
	c.emit(Effect{Do: DoAdmit, Peer: s.Peer})
	for _, l := range s.order.All {
		if l.held && l.in() {
			l.held, l.since = false, 0
			if s.down {
				c.lost(l)
			} else {
				c.send(l)
			}
		}
	}
}
