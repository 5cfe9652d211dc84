package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// heartbeat keeps a session alive: while anything of it is unsettled, D says every Times.Beat what it waits for.
type heartbeat struct {
	next       time.Duration // when to say so again, once the last heartbeat is answered
	Unanswered bool          // the last one is not answered
	Missed     int           // heartbeats in a row without an answer
	turn       int           // lines that the last heartbeats have named already, if one message could not hold all
}

// Silence is how many heartbeats a producer may leave unanswered; they are repeated every Times.Lost. They are counted and
// not only timed, so that an agent which was itself stopped for a while fails no transfer.
const Silence = 4

// scheduleHeartbeat makes sure that a heartbeat is sent within the pause, or as soon as the one that is not answered is.
func (c *Consumer) scheduleHeartbeat(s *producerSession, pause time.Duration) {
	at := c.Now + pause
	if s.down || s.void {
		return
	}
	if s.wake == 0 || at < s.Heartbeat.next {
		s.Heartbeat.next = at
	}
	if s.wake == 0 || at < s.wake && !s.Heartbeat.Unanswered {
		s.wake = at
		c.timers.Set(s)
	}
}

// answered takes a producer's answer to a heartbeat, or what stands for it.
func (c *Consumer) answered(s *producerSession) {
	u := &s.Heartbeat
	u.Unanswered, u.Missed, s.disconnectedAt = false, 0, 0
	if !s.down && s.wake > u.next {
		s.wake = max(u.next, c.Now)
		c.timers.Set(s)
	}
}

// sendHeartbeat says what D still waits for of a producer, or finds that it does not answer.
func (c *Consumer) sendHeartbeat(s *producerSession) {
	if s.disconnectedAt > 0 && c.Now >= s.disconnectedAt+c.Times.Lease {
		s.disconnectedAt = 0
		c.expireAllQueued(s, kvplane.PeerGone, "")
	}
	if s.down || s.void {
		return // up schedules it
	}
	u := &s.Heartbeat
	if !u.Unanswered && c.Now < u.next { // answered
		s.wake = u.next
		c.timers.Set(s)
		return
	}
	if u.Missed >= Silence {
		u.Missed = 0
		c.silent(s)
	}
	from := len(c.lines)
	whole := c.appendLines(s, from)
	if len(c.lines) == from && u.turn > 0 {
		u.turn = 0
		whole = c.appendLines(s, from)
	}
	if len(c.lines) == from {
		*u = heartbeat{}
		return
	}
	u.Unanswered = true
	u.next = c.Now + c.Times.Beat
	s.wake = c.Now + min(c.Times.Lost, c.Times.Beat)
	if !whole {
		u.turn += wire.MaxLines
		s.wake = c.Now + c.Times.Resend
		u.next = s.wake
		c.emit(Effect{Do: DoDrop, Peer: s.Peer, Drop: dropFull})
	} else {
		u.turn = 0
		u.Missed++
	}
	c.timers.Set(s)
	c.emit(Effect{Do: DoHeartbeat, Peer: s.Peer, Lines: c.lines[from:]})
}

// appendLines appends what one message can hold and says whether that was the rest of it.
func (c *Consumer) appendLines(s *producerSession, from int) bool {
	skip := s.Heartbeat.turn
	for _, l := range s.order.All {
		switch {
		case l.Phase == ProducerFinal || !l.in():
			continue
		case skip > 0:
			skip--
			continue
		case len(c.lines)-from == wire.MaxLines:
			return false
		}
		b := wire.HeartbeatLine{Seq: l.Seq, ID: l.incoming.ID}
		switch {
		case l.incoming.failed(): // asked about, but not to be kept
			b.ID = kvplane.TransferID{}
		case l.unsent: // P does not know the number yet
			b.Seq = 0
		}
		c.lines = append(c.lines, b)
	}
	for _, r := range s.queued.All {
		switch {
		case r.State != incomingQueued:
			continue
		case skip > 0:
			skip--
			continue
		case len(c.lines)-from == wire.MaxLines:
			return false
		}
		c.lines = append(c.lines, wire.HeartbeatLine{ID: r.ID})
	}
	return true
}

// silent gives up what counts on a producer that does not answer. What it may still write is for the cancels, the
// fence and the proof of its death to settle.
func (c *Consumer) silent(s *producerSession) {
	for _, l := range s.order.All {
		if l.in() && l.Phase != ProducerFinal && l.incoming.State == incomingReceiving {
			c.failTransfer(l.incoming, kvplane.PeerGone, "no answer")
		}
	}
	c.expireAllQueued(s, kvplane.PeerGone, "no answer")
}

func (c *Consumer) expireAllQueued(s *producerSession, why kvplane.Reason, detail string) {
	for _, r := range s.queued.All {
		if r.State == incomingQueued {
			c.expireQueued(r, why, detail)
		}
	}
}

// heartbeatAck takes P's answer to a heartbeat.
func (c *Consumer) heartbeatAck(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	c.answered(s)
	for i := range e.Msg.Lines {
		b := &e.Msg.Lines[i]
		l := s.Producers[b.Seq]
		switch {
		case b.Seq == 0:
			c.refused(s, b)
		case l == nil || l.Phase == ProducerFinal:
			c.emit(Effect{Do: DoDrop, Peer: s.Peer, Seq: b.Seq, Drop: DropRepeat}) // it has crossed a STATUS
		case l.neverSent():
			c.emit(Effect{Do: DoDrop, Peer: s.Peer, Seq: b.Seq, Drop: DropStranger})
		case b.Status.State > 0:
			c.takeStatus(l, b.Status)
		case l.Phase != producerLost: // P does not know it
			c.send(l)
		}
	}
}

// refused ends a transfer that P does not keep, before a write request was sent.
func (c *Consumer) refused(s *producerSession, b *wire.HeartbeatLine) {
	r := c.Incoming[b.ID]
	if r == nil || b.Status.State != wire.NotBegun {
		c.emit(Effect{Do: DoDrop, Peer: s.Peer, ID: b.ID, Drop: DropUnknown})
		return
	}
	if r.State == incomingQueued {
		for _, other := range r.keepers {
			if other == s {
				c.expireQueued(r, b.Status.Reason, "")
				return
			}
		}
	}
	for _, l := range r.Producers {
		if l.Session == s && l.unsent && l.Phase != ProducerFinal {
			c.final(l, b.Status)
			return
		}
	}
	c.emit(Effect{Do: DoDrop, Peer: s.Peer, ID: b.ID, Drop: DropUnknown})
}
