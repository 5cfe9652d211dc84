package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// pulse is how D keeps a session alive: while anything of it is unsettled it says every Times.Beat what it waits for.
type pulse struct {
	next   time.Duration // when to say so again, once the last beat is answered
	Asked  bool          // the last one is not answered
	Missed int           // beats in a row that were sent without a word coming back
	turn   int           // lines that the last beats have named already, if one message could not hold all
}

// Silence is how many beats a producer may leave unanswered; they are repeated every Times.Lost. They are counted and
// not only timed, so that an agent which was itself stopped for a while blames nobody.
const Silence = 4

// stir makes sure that a beat is sent within the pause, or as soon as the one that is not answered is.
func (c *Consumer) stir(s *outbound, pause time.Duration) {
	at := c.Now + pause
	if s.down || s.void {
		return
	}
	if s.wake == 0 || at < s.Pulse.next {
		s.Pulse.next = at
	}
	if s.wake == 0 || at < s.wake && !s.Pulse.Asked {
		s.wake = at
		c.timers.Set(s)
	}
}

// answered takes a producer's answer to a beat, or what stands for it.
func (c *Consumer) answered(s *outbound) {
	u := &s.Pulse
	u.Asked, u.Missed, s.parted = false, 0, 0
	if !s.down && s.wake > u.next {
		s.wake = max(u.next, c.Now)
		c.timers.Set(s)
	}
}

// beat says what D still waits for of a producer, or finds that it does not answer.
func (c *Consumer) beat(s *outbound) {
	if s.parted > 0 && c.Now >= s.parted+c.Times.Lease {
		s.parted = 0
		c.lapseAll(s, kvplane.PeerGone, "")
	}
	if s.down || s.void {
		return // up stirs it
	}
	u := &s.Pulse
	if !u.Asked && c.Now < u.next { // answered
		s.wake = u.next
		c.timers.Set(s)
		return
	}
	if u.Missed >= Silence {
		u.Missed = 0
		c.silent(s)
	}
	from := len(c.beats)
	whole := c.lines(s, from)
	if len(c.beats) == from && u.turn > 0 {
		u.turn = 0
		whole = c.lines(s, from)
	}
	if len(c.beats) == from {
		*u = pulse{}
		return
	}
	u.Asked = true
	u.next = c.Now + c.Times.Beat
	s.wake = c.Now + min(c.Times.Lost, c.Times.Beat)
	if !whole {
		u.turn += wire.MaxBeats
		s.wake = c.Now + c.Times.Resend
		u.next = s.wake
		c.emit(Effect{Do: DoDrop, Peer: s.Peer, Drop: dropFull})
	} else {
		u.turn = 0
		u.Missed++
	}
	c.timers.Set(s)
	c.emit(Effect{Do: DoBeat, Peer: s.Peer, Beats: c.beats[from:]})
}

// lines appends what one message can hold and says whether that was the rest of it.
func (c *Consumer) lines(s *outbound, from int) bool {
	skip := s.Pulse.turn
	for _, l := range s.order.All {
		switch {
		case l.State == OriginFinal || !l.in():
			continue
		case skip > 0:
			skip--
			continue
		case len(c.beats)-from == wire.MaxBeats:
			return false
		}
		b := wire.Beat{Seq: l.Seq, ID: l.receipt.ID}
		switch {
		case l.receipt.failed(): // asked about, but not to be kept
			b.ID = kvplane.TransferID{}
		case l.unsent: // P does not know the number yet
			b.Seq = 0
		}
		c.beats = append(c.beats, b)
	}
	for _, r := range s.queued.All {
		switch {
		case r.State != receiptQueued:
			continue
		case skip > 0:
			skip--
			continue
		case len(c.beats)-from == wire.MaxBeats:
			return false
		}
		c.beats = append(c.beats, wire.Beat{ID: r.ID})
	}
	return true
}

// silent gives up what counts on a producer that does not answer. What it may still write is for the cancels, the
// fence and the proof of its death to settle.
func (c *Consumer) silent(s *outbound) {
	for _, l := range s.order.All {
		if l.in() && l.State != OriginFinal && l.receipt.State == receiptCollect {
			c.stop(l.receipt, kvplane.PeerGone, "no answer")
		}
	}
	c.lapseAll(s, kvplane.PeerGone, "no answer")
}

func (c *Consumer) lapseAll(s *outbound, why kvplane.Reason, detail string) {
	for _, r := range s.queued.All {
		if r.State == receiptQueued {
			c.lapse(r, why, detail)
		}
	}
}

// beatAck takes P's answer to a beat.
func (c *Consumer) beatAck(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	c.answered(s)
	for i := range e.Msg.Beats {
		b := &e.Msg.Beats[i]
		l := s.Links[b.Seq]
		switch {
		case b.Seq == 0:
			c.refused(s, b)
		case l == nil || l.State == OriginFinal:
			c.emit(Effect{Do: DoDrop, Peer: s.Peer, Seq: b.Seq, Drop: DropRepeat}) // it has crossed a STATUS
		case l.stranger():
			c.emit(Effect{Do: DoDrop, Peer: s.Peer, Seq: b.Seq, Drop: DropStranger})
		case b.Status.State > 0:
			c.word(l, b.Status)
		case l.State != originLost: // P does not know it
			c.send(l)
		}
	}
}

// refused takes P's word that it does not keep a transfer for which nothing is registered yet.
func (c *Consumer) refused(s *outbound, b *wire.Beat) {
	r := c.Receipts[b.ID]
	if r == nil || b.Status.State != wire.NotBegun {
		c.emit(Effect{Do: DoDrop, Peer: s.Peer, ID: b.ID, Drop: DropUnknown})
		return
	}
	if r.State == receiptQueued {
		for _, other := range r.waits {
			if other == s {
				c.lapse(r, b.Status.Reason, "")
				return
			}
		}
	}
	for _, l := range r.Links {
		if l.Session == s && l.unsent && l.State != OriginFinal {
			c.final(l, b.Status)
			return
		}
	}
	c.emit(Effect{Do: DoDrop, Peer: s.Peer, ID: b.ID, Drop: DropUnknown})
}

// bye takes the word of a producer that ends in good order: nothing that it has posted is in progress. What it has
// not begun it never will. That D has not heard of a write does not mean that there was none, so that what was
// registered is drained; a write that D has heard of has ended too, and how it says no more.
func (c *Consumer) bye(e Event) {
	s := c.Sessions[e.Peer]
	if s == nil {
		c.drop(e, DropStranger)
		return
	}
	c.answered(s)
	for _, l := range s.order.All {
		switch {
		case !l.in() || l.State == OriginFinal:
		case l.began:
			c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Closing})
		default:
			l.wary = true
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing})
		}
	}
	c.lapseAll(s, kvplane.Closing, "")
}
