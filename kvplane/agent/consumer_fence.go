package agent

import "pdrouter/kvplane"

// fenced takes the transport's word that nothing which a peer has sent, or sends before it is admitted again, lands.
// That settles every failed transfer; one that still counted on the peer fails. The peer is asked on: it is admitted
// when it has answered for all of them, for only then does it not begin to write for one of them later.
func (c *consumer) fenced(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		c.drop(e, dropUnknown)
		return
	}
	s.barred = true
	for _, r := range c.fence(s) {
		if r.state == receiptCollect {
			c.stop(r, kvplane.PeerGone, "")
		} else {
			c.check(r)
		}
	}
	c.admit(s)
}

// fence marks what a fenced session can no longer do, and returns the transfers that this changes.
func (c *consumer) fence(s *outbound) []*receipt {
	var changed []*receipt
	for _, l := range s.order.all {
		r := l.receipt
		switch {
		case !l.in() || r.state != receiptCollect && r.state != receiptStop:
			continue
		case l.unsent:
			l.held = r.state == receiptCollect
			continue
		case l.harmless():
			continue
		case l.state == originFinal:
			c.dry(l)
		default:
			l.fenced = true
			s.mute++
		}
		changed = append(changed, r)
	}
	return changed
}

// admit lets a fenced peer write again, if it has answered for everything that was fenced, and registers what waits.
func (c *consumer) admit(s *outbound) {
	if !s.barred || s.void || s.mute > 0 {
		return
	}
	s.barred = false
	c.emit(effect{do: doAdmit, peer: s.peer})
	for _, l := range s.order.all {
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
