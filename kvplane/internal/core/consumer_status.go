package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
)

// status handles STATUS and DONE.
func (c *Consumer) status(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	s.Heartbeat.Missed, s.disconnectedAt = 0, 0
	l := s.Producers[e.Seq]
	switch {
	case e.Seq > s.Last || e.Seq == 0 || l != nil && l.neverSent():
		c.drop(e, DropStranger)
	case l == nil || l.Phase == ProducerFinal: // the first final state stands
		switch st, past := e.Msg.Status.State, s.past[e.Seq%uint64(len(s.past))]; {
		case st.Final() && past.seq == e.Seq && past.state != st:
			c.drop(e, dropConflict)
		case e.Seq < s.LowWater:
			c.drop(e, DropSettled)
		default:
			c.drop(e, DropRepeat)
		}
		c.emit(Effect{Do: DoAck, Peer: e.Peer, Seq: e.Seq})
	default:
		c.takeStatus(l, e.Msg.Status)
	}
}

// takeStatus applies a status to a write request that is not final yet.
func (c *Consumer) takeStatus(l *ProducerState, st wire.Status) {
	l.since, l.heard = 0, c.Now
	if st.State.Final() {
		l.Session.past[l.Seq%uint64(len(l.Session.past))] = finalStatus{l.Seq, st.State}
		c.final(l, st)
		return
	}
	l.sawWriting = l.sawWriting || st.State == wire.Writing
	if l.Phase == producerSent || l.Phase == producerLost && !l.incoming.failed() {
		l.Phase, l.wake = producerAcked, 0
	}
	if r := l.incoming; r.State == incomingReceiving && st.State >= wire.Pairing && !r.sawWriting {
		r.sawWriting = true
		r.wake = c.Now + c.Times.Deadline
		c.timers.Set(r)
	}
}

// final settles a producer with its final state, or with the state that is assumed for it.
func (c *Consumer) final(l *ProducerState, st wire.Status) {
	l.Phase, l.status, l.wake, l.heldBack = ProducerFinal, st, 0, false
	r := l.incoming
	if l.Fenced {
		l.Session.unansweredFenced--
	}
	l.flushed = r.State == incomingReady || l.Fenced || l.unsent || st.State != wire.Failed && !l.mustFlush
	if l.flushed {
		delete(l.Session.Producers, l.Seq)
	}
	c.settle(l.Session)
	c.emit(Effect{Do: DoAck, Peer: l.Session.Peer, Seq: l.Seq})
	switch {
	case r.State != incomingReceiving:
		c.Check(r)
	case st.State != wire.Done:
		c.failTransfer(r, st.Reason, st.Detail)
	default:
		if st.Tokens > 0 && (r.tokens == 0 || st.Tokens < r.tokens) {
			r.tokens = st.Tokens
		}
		c.Check(r)
	}
	if !l.flushed && r.State == IncomingFailed {
		l.wake = c.Now + c.Times.NetDelay
		c.timers.Set(l)
	}
	c.admitAfterFence(l.Session)
}

// markFlushed notes that no bytes of a producer are on their way any more.
func (c *Consumer) markFlushed(l *ProducerState) {
	l.flushed, l.wake = true, 0
	delete(l.Session.Producers, l.Seq)
	c.settle(l.Session)
}

// flushed notes that two whole passes of the transport have been made after the net delay.
func (c *Consumer) flushed(e Event) {
	r := c.Incoming[e.ID]
	if r == nil {
		c.drop(e, DropUnknown)
		return
	}
	for _, l := range r.Producers {
		if l.Session.Peer == e.Peer && l.Seq == e.Seq && l.Phase == ProducerFinal && !l.flushed {
			c.markFlushed(l)
			c.Check(r)
			return
		}
	}
	c.drop(e, DropUnknown)
}

// counted says how many writers are done, and of how many.
func (r *IncomingTransfer) counted() (k, n int) {
	for _, l := range r.Producers {
		if !l.Writes {
			continue
		}
		n++
		if l.Phase == ProducerFinal && l.status.State == wire.Done {
			k++
		}
	}
	return k, n
}

// Check moves a transfer on when what it waits for is here, and forgets it when all its producers are final.
func (c *Consumer) Check(r *IncomingTransfer) {
	switch r.State {
	case incomingReceiving:
		if k, n := r.counted(); k == n || r.empty {
			r.State = incomingReady
			c.report(r, kvplane.Ready)
			for _, l := range r.Producers { // a lost one has until the deadline to answer
				if l.Phase == producerLost {
					l.wake = 0
				}
			}
		}
	case IncomingFailed:
		for _, l := range r.Producers {
			if !l.Quiesced() {
				return
			}
		}
		r.State, r.retired = incomingReusable, true // fenced producers may still owe an answer
		c.report(r, kvplane.Reusable)
		if r.producersUnknown { // those that keep blocks for it get a CANCEL as soon as they are known
			r.wake = c.Now + c.Times.Wait
			c.timers.Set(r)
		}
	}
	if r.State != incomingReady && (r.State != incomingReusable || !r.retired || r.producersUnknown) {
		return
	}
	for _, l := range r.Producers {
		if l.Phase != ProducerFinal {
			return
		}
	}
	c.forget(r)
}

func (c *Consumer) report(r *IncomingTransfer, k kvplane.ReportKind) {
	done, of := r.counted()
	c.emit(Effect{Do: DoReport, Report: k, ID: r.ID, Reason: r.reason, Detail: r.detail, Tokens: r.tokens, K: done, N: of, Expect: r.expect})
}

// failTransfer fails a transfer: Failed is reported at once, Reusable when nothing can land any more.
func (c *Consumer) failTransfer(r *IncomingTransfer, why kvplane.Reason, detail string) {
	r.State, r.reason, r.detail, r.wake = IncomingFailed, why, detail, 0
	c.report(r, kvplane.Failed)
	for _, l := range r.Producers {
		switch l.Phase {
		case producerSent, producerAcked:
			if l.Session.void {
				c.lost(l)
				continue
			}
			c.send(l)
		case producerLost:
			c.failLost(l)
		}
	}
	c.Check(r)
}

// failLost gives up a producer to whom there is no connection.
func (c *Consumer) failLost(l *ProducerState) {
	s := l.Session
	l.wake = 0
	switch {
	case l.unsent:
		c.cancelUnsent(l)
	case !l.Fenced && !s.void:
		c.emit(Effect{Do: DoFence, Peer: s.Peer})
	}
	if l.Phase == producerLost && (s.ProvenDead || s.fencedForever) {
		c.dead(l)
	}
}

func (c *Consumer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *ProducerState:
		v.wake = 0
		c.alarmProducer(v)
	case *producerSession:
		v.wake = 0
		c.sendHeartbeat(v)
	case *IncomingTransfer:
		v.wake = 0
		c.alarmIncoming(v)
	}
}

func (c *Consumer) alarmProducer(l *ProducerState) {
	switch {
	case l.unsent && l.incoming.failed() && c.Now-l.heard >= c.Times.Wait+c.Times.Lease:
		if l.Phase != ProducerFinal { // after so long no answer will come
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled})
		}
	case l.Phase == producerSent || l.Phase == ProducerCancelled:
		c.resend(l)
		if l.Phase == ProducerCancelled && !l.Fenced && !l.unsent && c.Now-l.heard >= c.Times.Lost {
			c.emit(Effect{Do: DoFence, Peer: l.Session.Peer}) // it is silent
		}
	case l.Phase == producerLost && l.incoming.State == incomingReceiving:
		c.failTransfer(l.incoming, kvplane.PeerGone, "")
	case l.Phase == ProducerFinal && !l.flushed:
		c.emit(Effect{Do: DoFlush, Peer: l.Session.Peer, Seq: l.Seq, ID: l.incoming.ID})
	}
}

func (c *Consumer) alarmIncoming(r *IncomingTransfer) {
	switch r.State {
	case incomingQueued:
		if c.Now < r.until {
			r.wake = r.until
			c.timers.Set(r)
			return
		}
		c.expireQueued(r, kvplane.Deadline, "")
	case incomingPairing, incomingReceiving:
		c.failTransfer(r, kvplane.Deadline, "")
	case incomingReady: // only those that never write are left; nothing depends on them
		for _, l := range r.Producers {
			if l.Phase != ProducerFinal {
				c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Deadline})
			}
		}
	case incomingReusable:
		r.retired, r.producersUnknown = true, false
		c.Check(r)
	}
}
