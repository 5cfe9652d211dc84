package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
)

// status takes a producer's word.
func (c *consumer) status(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		c.drop(e, dropStranger)
		return
	}
	s.pulse.missed, s.parted = 0, 0
	l := s.links[e.seq]
	switch {
	case e.seq > s.last || e.seq == 0 || l != nil && l.stranger():
		c.drop(e, dropStranger)
	case l == nil || l.state == originFinal: // the first final word stands
		switch st, past := e.msg.Status.State, s.past[e.seq%uint64(len(s.past))]; {
		case st.Final() && past.seq == e.seq && past.state != st:
			c.drop(e, dropConflict)
		case e.seq < s.floor:
			c.drop(e, dropFloor)
		default:
			c.drop(e, dropRepeat)
		}
		c.emit(effect{do: doFloor, peer: e.peer, seq: e.seq})
	default:
		c.word(l, e.msg.Status)
	}
}

// word takes what a producer says of a number that is not final yet.
func (c *consumer) word(l *origin, st wire.Status) {
	l.since, l.heard = 0, c.now
	if st.State.Final() {
		l.session.past[l.seq%uint64(len(l.session.past))] = verdict{l.seq, st.State}
		c.final(l, st)
		return
	}
	l.began = l.began || st.State == wire.Writing
	if l.state == originSent || l.state == originLost && !l.receipt.failed() {
		l.state, l.wake = originAcked, 0
	}
	if r := l.receipt; r.state == receiptCollect && st.State >= wire.Pairing && !r.begun {
		r.begun = true
		r.wake = c.now + c.times.Deadline
		c.timers.Set(r)
	}
}

// final settles a producer with P's last word, or with what stands for it.
func (c *consumer) final(l *origin, st wire.Status) {
	l.state, l.status, l.wake, l.held = originFinal, st, 0, false
	r := l.receipt
	if l.fenced {
		l.session.mute--
	}
	l.drained = r.state == receiptReady || l.fenced || l.unsent || st.State != wire.Failed && !l.wary
	if l.drained {
		delete(l.session.links, l.seq)
	}
	c.settle(l.session)
	c.emit(effect{do: doFloor, peer: l.session.peer, seq: l.seq})
	switch {
	case r.state != receiptCollect:
		c.check(r)
	case st.State != wire.Done:
		c.stop(r, st.Reason, st.Detail)
	default:
		if st.Tokens > 0 && (r.tokens == 0 || st.Tokens < r.tokens) {
			r.tokens = st.Tokens
		}
		c.check(r)
	}
	if !l.drained && r.state == receiptStop {
		l.wake = c.now + c.times.NetDelay
		c.timers.Set(l)
	}
	c.admit(l.session)
}

// dry marks a producer of which nothing is on its way any more.
func (c *consumer) dry(l *origin) {
	l.drained, l.wake = true, 0
	delete(l.session.links, l.seq)
	c.settle(l.session)
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
			c.dry(l)
			c.check(r)
			return
		}
	}
	c.drop(e, dropUnknown)
}

// counted says how many writers are done, and of how many.
func (r *receipt) counted() (k, n int) {
	for _, l := range r.links {
		if !l.writes {
			continue
		}
		n++
		if l.state == originFinal && l.status.State == wire.Done {
			k++
		}
	}
	return k, n
}

// check moves a transfer on when what it waits for is here, and forgets it when nobody is left to hear from.
func (c *consumer) check(r *receipt) {
	switch r.state {
	case receiptCollect:
		if k, n := r.counted(); k == n || r.empty {
			r.state = receiptReady
			c.report(r, kvplane.Ready)
			for _, l := range r.links { // whoever was lost has until the deadline to be heard
				if l.state == originLost {
					l.wake = 0
				}
			}
		}
	case receiptStop:
		for _, l := range r.links {
			if !l.harmless() {
				return
			}
		}
		r.state, r.retired = receiptSafe, true // fenced producers may still owe their word
		c.report(r, kvplane.Safe)
		if r.unpaired { // whoever holds blocks for it is told as soon as it is known
			r.wake = c.now + c.times.Wait
			c.timers.Set(r)
		}
	}
	if r.state != receiptReady && (r.state != receiptSafe || !r.retired || r.unpaired) {
		return
	}
	for _, l := range r.links {
		if l.state != originFinal {
			return
		}
	}
	c.forget(r)
}

func (c *consumer) report(r *receipt, k kvplane.ReportKind) {
	done, of := r.counted()
	c.emit(effect{do: doReport, report: k, id: r.id, reason: r.reason, detail: r.detail, tokens: r.tokens, k: done, n: of, expect: r.expect})
}

// stop gives a transfer up: negative at once, safe when nothing can land any more.
func (c *consumer) stop(r *receipt, why kvplane.Reason, detail string) {
	r.state, r.reason, r.detail, r.wake = receiptStop, why, detail, 0
	c.report(r, kvplane.Negative)
	for _, l := range r.links {
		switch l.state {
		case originSent, originAcked:
			if l.session.void {
				c.lost(l)
				continue
			}
			c.send(l)
		case originLost:
			c.stopLost(l)
		}
	}
	c.check(r)
}

// stopLost gives up a producer to whom there is no connection.
func (c *consumer) stopLost(l *origin) {
	s := l.session
	l.wake = 0
	switch {
	case l.unsent:
		c.recall(l)
	case !l.fenced && !s.void:
		c.emit(effect{do: doFence, peer: s.peer})
	}
	if l.state == originLost && (s.proof || s.sealed) {
		c.dead(l)
	}
}

func (c *consumer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *origin:
		v.wake = 0
		c.alarmOrigin(v)
	case *outbound:
		v.wake = 0
		c.beat(v)
	case *receipt:
		v.wake = 0
		c.alarmReceipt(v)
	}
}

func (c *consumer) alarmOrigin(l *origin) {
	switch {
	case l.unsent && l.receipt.failed() && c.now-l.heard >= c.times.Wait+c.times.Lease:
		if l.state != originFinal { // nobody has answered for so long that nobody will
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled})
		}
	case l.state == originSent || l.state == originCancelled:
		c.resend(l)
		if l.state == originCancelled && !l.fenced && !l.unsent && c.now-l.heard >= c.times.Lost {
			c.emit(effect{do: doFence, peer: l.session.peer}) // it is silent
		}
	case l.state == originLost && l.receipt.state == receiptCollect:
		c.stop(l.receipt, kvplane.PeerGone, "")
	case l.state == originFinal && !l.drained:
		c.emit(effect{do: doDrain, peer: l.session.peer, seq: l.seq, id: l.receipt.id})
	}
}

func (c *consumer) alarmReceipt(r *receipt) {
	switch r.state {
	case receiptQueued:
		if c.now < r.until {
			r.wake = r.until
			c.timers.Set(r)
			return
		}
		c.lapse(r, kvplane.Deadline, "")
	case receiptPairing, receiptCollect:
		c.stop(r, kvplane.Deadline, "")
	case receiptReady: // only those that never write are left; nothing hangs on them
		for _, l := range r.links {
			if l.state != originFinal {
				c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Deadline})
			}
		}
	case receiptSafe:
		r.retired, r.unpaired = true, false
		c.check(r)
	}
}
