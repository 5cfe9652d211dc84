package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// pulse is how D keeps a session alive: while anything of it is unsettled it says every Times.Beat what it waits for.
type pulse struct {
	next   time.Duration // when to say so again, once the last beat is answered
	asked  bool          // the last one is not answered
	missed int           // beats in a row that were sent without a word coming back
	turn   int           // lines that the last beats have named already, if one message could not hold all
}

// silence is how many beats a producer may leave unanswered; they are repeated every Times.Lost. They are counted and
// not only timed, so that an agent which was itself stopped for a while blames nobody.
const silence = 4

// stir makes sure that a beat is sent within the pause, or as soon as the one that is not answered is.
func (c *consumer) stir(s *outbound, pause time.Duration) {
	at := c.now + pause
	if s.down || s.void {
		return
	}
	if s.wake == 0 || at < s.pulse.next {
		s.pulse.next = at
	}
	if s.wake == 0 || at < s.wake && !s.pulse.asked {
		s.wake = at
		c.timers.Set(s)
	}
}

// answered takes a producer's answer to a beat, or what stands for it.
func (c *consumer) answered(s *outbound) {
	u := &s.pulse
	u.asked, u.missed, s.parted = false, 0, 0
	if !s.down && s.wake > u.next {
		s.wake = max(u.next, c.now)
		c.timers.Set(s)
	}
}

// beat says what D still waits for of a producer, or finds that it does not answer.
func (c *consumer) beat(s *outbound) {
	if s.parted > 0 && c.now >= s.parted+c.times.Lease {
		s.parted = 0
		c.lapseAll(s, kvplane.PeerGone, "")
	}
	if s.down || s.void {
		return // up stirs it
	}
	u := &s.pulse
	if !u.asked && c.now < u.next { // answered
		s.wake = u.next
		c.timers.Set(s)
		return
	}
	if u.missed >= silence {
		u.missed = 0
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
	u.asked = true
	u.next = c.now + c.times.Beat
	s.wake = c.now + min(c.times.Lost, c.times.Beat)
	if !whole {
		u.turn += wire.MaxBeats
		s.wake = c.now + c.times.Resend
		u.next = s.wake
		c.emit(effect{do: doDrop, peer: s.peer, drop: dropFull})
	} else {
		u.turn = 0
		u.missed++
	}
	c.timers.Set(s)
	c.emit(effect{do: doBeat, peer: s.peer, beats: c.beats[from:]})
}

// lines appends what one message can hold and says whether that was the rest of it.
func (c *consumer) lines(s *outbound, from int) bool {
	skip := s.pulse.turn
	for _, l := range s.order.all {
		switch {
		case l.state == originFinal || !l.in():
			continue
		case skip > 0:
			skip--
			continue
		case len(c.beats)-from == wire.MaxBeats:
			return false
		}
		b := wire.Beat{Seq: l.seq, ID: l.receipt.id}
		switch {
		case l.receipt.failed(): // asked about, but not to be kept
			b.ID = kvplane.TransferID{}
		case l.unsent: // P does not know the number yet
			b.Seq = 0
		}
		c.beats = append(c.beats, b)
	}
	for _, r := range s.queued.all {
		switch {
		case r.state != receiptQueued:
			continue
		case skip > 0:
			skip--
			continue
		case len(c.beats)-from == wire.MaxBeats:
			return false
		}
		c.beats = append(c.beats, wire.Beat{ID: r.id})
	}
	return true
}

// silent gives up what counts on a producer that does not answer. What it may still write is for the cancels, the
// fence and the proof of its death to settle.
func (c *consumer) silent(s *outbound) {
	for _, l := range s.order.all {
		if l.in() && l.state != originFinal && l.receipt.state == receiptCollect {
			c.stop(l.receipt, kvplane.PeerGone, "no answer")
		}
	}
	c.lapseAll(s, kvplane.PeerGone, "no answer")
}

func (c *consumer) lapseAll(s *outbound, why kvplane.Reason, detail string) {
	for _, r := range s.queued.all {
		if r.state == receiptQueued {
			c.lapse(r, why, detail)
		}
	}
}

// beatAck takes P's answer to a beat.
func (c *consumer) beatAck(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		c.drop(e, dropStranger)
		return
	}
	c.answered(s)
	for i := range e.msg.Beats {
		b := &e.msg.Beats[i]
		l := s.links[b.Seq]
		switch {
		case b.Seq == 0:
			c.refused(s, b)
		case l == nil || l.state == originFinal:
			c.emit(effect{do: doDrop, peer: s.peer, seq: b.Seq, drop: dropRepeat}) // it has crossed a STATUS
		case l.stranger():
			c.emit(effect{do: doDrop, peer: s.peer, seq: b.Seq, drop: dropStranger})
		case b.Status.State > 0:
			c.word(l, b.Status)
		case l.state != originLost: // P does not know it
			c.send(l)
		}
	}
}

// refused takes P's word that it does not keep a transfer for which nothing is registered yet.
func (c *consumer) refused(s *outbound, b *wire.Beat) {
	r := c.receipts[b.ID]
	if r == nil || b.Status.State != wire.NotBegun {
		c.emit(effect{do: doDrop, peer: s.peer, id: b.ID, drop: dropUnknown})
		return
	}
	if r.state == receiptQueued {
		for _, other := range r.waits {
			if other == s {
				c.lapse(r, b.Status.Reason, "")
				return
			}
		}
	}
	for _, l := range r.links {
		if l.session == s && l.unsent && l.state != originFinal {
			c.final(l, b.Status)
			return
		}
	}
	c.emit(effect{do: doDrop, peer: s.peer, id: b.ID, drop: dropUnknown})
}

// bye takes the word of a producer that ends in good order: nothing that it has posted is in progress. What it has
// not begun it never will. That D has not heard of a write does not mean that there was none, so that what was
// registered is drained; a write that D has heard of has ended too, and how it says no more.
func (c *consumer) bye(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		c.drop(e, dropStranger)
		return
	}
	c.answered(s)
	for _, l := range s.order.all {
		switch {
		case !l.in() || l.state == originFinal:
		case l.began:
			c.final(l, wire.Status{State: wire.Failed, Reason: kvplane.Closing})
		default:
			l.wary = true
			c.final(l, wire.Status{State: wire.NotBegun, Reason: kvplane.Closing})
		}
	}
	c.lapseAll(s, kvplane.Closing, "")
}
