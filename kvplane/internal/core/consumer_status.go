package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
)

// status takes a producer's word.
func (c *Consumer) status(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	s.Pulse.Missed, s.parted = 0, 0
	l := s.Links[e.Seq]
	switch {
	case e.Seq > s.Last || e.Seq == 0 || l != nil && l.stranger():
		c.drop(e, DropStranger)
	case l == nil || l.State == OriginFinal: // the first final word stands
		switch st, past := e.Msg.Status.State, s.past[e.Seq%uint64(len(s.past))]; {
		case st.Final() && past.seq == e.Seq && past.state != st:
			c.drop(e, dropConflict)
		case e.Seq < s.Floor:
			c.drop(e, DropFloor)
		default:
			c.drop(e, DropRepeat)
		}
		c.emit(Effect{Do: DoFloor, Peer: e.Peer, Seq: e.Seq})
	default:
		c.word(l, e.Msg.Status)
	}
}

// word takes what a producer says of a number that is not final yet.
func (c *Consumer) word(l *Origin, st wire.Status) {
	l.since, l.heard = 0, c.Now
	if st.State.Final() {
		l.Session.past[l.Seq%uint64(len(l.Session.past))] = verdict{l.Seq, st.State}
		c.final(l, st)
		return
	}
	l.began = l.began || st.State == wire.Writing
	if l.State == originSent || l.State == originLost && !l.receipt.failed() {
		l.State, l.wake = originAcked, 0
	}
	if r := l.receipt; r.State == receiptCollect && st.State >= wire.Pairing && !r.begun {
		r.begun = true
		r.wake = c.Now + c.Times.Deadline
		c.timers.Set(r)
	}
}

// final settles a producer with P's last word, or with what stands for it.
func (c *Consumer) final(l *Origin, st wire.Status) {
	l.State, l.status, l.wake, l.held = OriginFinal, st, 0, false
	r := l.receipt
	if l.Fenced {
		l.Session.mute--
	}
	l.drained = r.State == receiptReady || l.Fenced || l.unsent || st.State != wire.Failed && !l.wary
	if l.drained {
		delete(l.Session.Links, l.Seq)
	}
	c.settle(l.Session)
	c.emit(Effect{Do: DoFloor, Peer: l.Session.Peer, Seq: l.Seq})
	switch {
	case r.State != receiptCollect:
		c.Check(r)
	case st.State != wire.Done:
		c.stop(r, st.Reason, st.Detail)
	default:
		if st.Tokens > 0 && (r.tokens == 0 || st.Tokens < r.tokens) {
			r.tokens = st.Tokens
		}
		c.Check(r)
	}
	if !l.drained && r.State == ReceiptStop {
		l.wake = c.Now + c.Times.NetDelay
		c.timers.Set(l)
	}
	c.admit(l.Session)
}

// dry marks a producer of which nothing is on its way any more.
func (c *Consumer) dry(l *Origin) {
	l.drained, l.wake = true, 0
	delete(l.Session.Links, l.Seq)
	c.settle(l.Session)
}

// drained takes the word that two whole passes have been made after the net delay.
func (c *Consumer) drained(e Event) {
	r := c.Receipts[e.ID]
	if r == nil {
		c.drop(e, DropUnknown)
		return
	}
	for _, l := range r.Links {
		if l.Session.Peer == e.Peer && l.Seq == e.Seq && l.State == OriginFinal && !l.drained {
			c.dry(l)
			c.Check(r)
			return
		}
	}
	c.drop(e, DropUnknown)
}

// counted says how many writers are done, and of how many.
func (r *Receipt) counted() (k, n int) {
	for _, l := range r.Links {
		if !l.Writes {
			continue
		}
		n++
		if l.State == OriginFinal && l.status.State == wire.Done {
			k++
		}
	}
	return k, n
}

// Check moves a transfer on when what it waits for is here, and forgets it when nobody is left to hear from.
func (c *Consumer) Check(r *Receipt) {
	switch r.State {
	case receiptCollect:
		if k, n := r.counted(); k == n || r.empty {
			r.State = receiptReady
			c.report(r, kvplane.Ready)
			for _, l := range r.Links { // whoever was lost has until the deadline to be heard
				if l.State == originLost {
					l.wake = 0
				}
			}
		}
	case ReceiptStop:
		for _, l := range r.Links {
			if !l.Harmless() {
				return
			}
		}
		r.State, r.retired = receiptSafe, true // fenced producers may still owe their word
		c.report(r, kvplane.Safe)
		if r.unpaired { // whoever holds blocks for it is told as soon as it is known
			r.wake = c.Now + c.Times.Wait
			c.timers.Set(r)
		}
	}
	if r.State != receiptReady && (r.State != receiptSafe || !r.retired || r.unpaired) {
		return
	}
	for _, l := range r.Links {
		if l.State != OriginFinal {
			return
		}
	}
	c.forget(r)
}

func (c *Consumer) report(r *Receipt, k kvplane.ReportKind) {
	done, of := r.counted()
	c.emit(Effect{Do: DoReport, Report: k, ID: r.ID, Reason: r.reason, Detail: r.detail, Tokens: r.tokens, K: done, N: of, Expect: r.expect})
}

// stop gives a transfer up: negative at once, safe when nothing can land any more.
func (c *Consumer) stop(r *Receipt, why kvplane.Reason, detail string) {
	r.State, r.reason, r.detail, r.wake = ReceiptStop, why, detail, 0
	c.report(r, kvplane.Negative)
	for _, l := range r.Links {
		switch l.State {
		case originSent, originAcked:
			if l.Session.void {
				c.lost(l)
				continue
			}
			c.send(l)
		case originLost:
			c.stopLost(l)
		}
	}
	c.Check(r)
}

// stopLost gives up a producer to whom there is no connection.
func (c *Consumer) stopLost(l *Origin) {
	s := l.Session
	l.wake = 0
	switch {
	case l.unsent:
		c.recall(l)
	case !l.Fenced && !s.void:
		c.emit(Effect{Do: DoFence, Peer: s.Peer})
	}
	if l.State == originLost && (s.Proof || s.sealed) {
		c.dead(l)
	}
}

func (c *Consumer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *Origin:
		v.wake = 0
		c.alarmOrigin(v)
	case *outbound:
		v.wake = 0
		c.beat(v)
	case *Receipt:
		v.wake = 0
		c.alarmReceipt(v)
	}
}

func (c *Consumer) alarmOrigin(l *Origin) {
	switch {
	case l.unsent && l.receipt.failed() && c.Now-l.heard >= c.Times.Wait+c.Times.Lease:
		if l.State != OriginFinal { // nobody has answered for so long that nobody will
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled})
		}
	case l.State == originSent || l.State == OriginCancelled:
		c.resend(l)
		if l.State == OriginCancelled && !l.Fenced && !l.unsent && c.Now-l.heard >= c.Times.Lost {
			c.emit(Effect{Do: DoFence, Peer: l.Session.Peer}) // it is silent
		}
	case l.State == originLost && l.receipt.State == receiptCollect:
		c.stop(l.receipt, kvplane.PeerGone, "")
	case l.State == OriginFinal && !l.drained:
		c.emit(Effect{Do: DoDrain, Peer: l.Session.Peer, Seq: l.Seq, ID: l.receipt.ID})
	}
}

func (c *Consumer) alarmReceipt(r *Receipt) {
	switch r.State {
	case receiptQueued:
		if c.Now < r.until {
			r.wake = r.until
			c.timers.Set(r)
			return
		}
		c.lapse(r, kvplane.Deadline, "")
	case receiptPairing, receiptCollect:
		c.stop(r, kvplane.Deadline, "")
	case receiptReady: // only those that never write are left; nothing hangs on them
		for _, l := range r.Links {
			if l.State != OriginFinal {
				c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Deadline})
			}
		}
	case receiptSafe:
		r.retired, r.unpaired = true, false
		c.Check(r)
	}
}
