package kvplane

import (
	"time"

	"pdrouter/metadata"
)

// consumer is the receiving side of one rank: the blocks it waits for, and what every expected producer has said. Its
// states are the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type consumer struct {
	times    Times
	sessions map[peerID]*outbound
	receipts map[TransferID]*receipt
	timers   timers
	out      []effect
	now      time.Duration
}

// outbound is a session as D sees it: the registrations it has numbered.
type outbound struct {
	peer   peerID
	inc    metadata.Incarnation
	down   bool
	void   bool   // the incarnation is gone
	proof  bool   // and so is its process
	barred bool   // fenced: nothing that it writes lands until it has answered for every fenced registration
	sealed bool   // fenced for good
	last   uint64 // the highest number used
	floor  uint64 // the lowest number not settled
	links  map[uint64]*origin
}

// origin is one expected producer of one transfer.
type origin struct {
	receipt *receipt
	session *outbound
	seq     uint64
	writes  bool
	state   originState
	status  status
	drained bool
	fenced  bool          // nothing that is written for it can land
	held    bool          // its session is barred and it has never been sent
	heard   time.Duration // stop: when the producer was last heard, or the cancel first sent
	since   time.Duration // when its connection was lost, until it is heard again; 0 is never
	wake    time.Duration
	again   backoff
}

func (l *origin) due() time.Duration { return l.wake }

// harmless says that nothing of this producer lands in the transfer's blocks any more.
func (l *origin) harmless() bool { return l.fenced || l.state == originFinal && l.drained }

type originState uint8

const (
	originSent      originState = iota + 1 // S: registration sent
	originAcked                            // A: acknowledged
	originCancelled                        // C: cancel sent
	originLost                             // U: the connection is lost
	originFinal                            // F
)

func (s originState) String() string {
	return [...]string{"none", "sent", "acked", "cancelled", "lost", "final"}[s]
}

// receipt is one transfer on this rank.
type receipt struct {
	id      TransferID
	state   receiptState
	inc     metadata.Incarnation
	links   []*origin
	expect  *Expectation
	empty   bool // nothing is needed
	begun   bool // a producer writes: the shorter deadline runs
	tokens  int
	reason  Reason
	detail  string
	wake    time.Duration
	retired bool
}

func (r *receipt) due() time.Duration { return r.wake }

type receiptState uint8

const (
	receiptPairing receiptState = iota + 1 // whom to expect is not known yet
	receiptCollect                         // registered
	receiptReady                           // all is here
	receiptStop                            // failed; bytes may still land
	receiptSafe                            // failed; nothing lands any more
)

func (s receiptState) String() string {
	return [...]string{"none", "pairing", "collect", "ready", "stop", "safe"}[s]
}

// failed says that the transfer was given up, whether or not its blocks are safe already.
func (r *receipt) failed() bool { return r.state == receiptStop || r.state == receiptSafe }

func newConsumer(t Times) *consumer {
	return &consumer{times: t, sessions: map[peerID]*outbound{}, receipts: map[TransferID]*receipt{}}
}

// Step applies one event and appends to out what the owner must do.
func (c *consumer) Step(e event, out []effect) []effect {
	c.out, c.now = out, e.at
	switch e.kind {
	case evExpect:
		c.expect(e)
	case evProducers:
		c.producers(e)
	case evUnpaired:
		if r := c.receipts[e.id]; r != nil && r.state == receiptPairing {
			c.stop(r, e.reason, e.detail)
		} else {
			c.drop(e, dropState)
		}
	case evAbandon:
		c.abandon(e)
	case evStatus:
		c.status(e)
	case evDrained:
		c.drained(e)
	case evFenced:
		c.fenced(e)
	case evUp:
		c.up(e)
	case evDown:
		c.down(e)
	case evUnreachable:
	case evGone:
		c.gone(e)
	case evTick:
		for who := c.timers.pop(c.now); who != nil; who = c.timers.pop(c.now) {
			c.alarm(who)
		}
	default:
		c.drop(e, dropState)
	}
	out, c.out = c.out, nil
	return out
}

func (c *consumer) emit(x effect) { c.out = append(c.out, x) }

func (c *consumer) drop(e event, why drop) {
	c.emit(effect{do: doDrop, peer: e.peer, seq: e.seq, id: e.id, drop: why})
}

func (c *consumer) expect(e event) {
	if r := c.receipts[e.id]; r != nil {
		if r.state != receiptSafe || r.retired {
			c.drop(e, dropRepeat)
			return
		}
		// Given up before it was expected: nothing was registered.
		r.retired, r.expect = true, e.expect
		c.report(r, Negative)
		c.report(r, Safe)
		return
	}
	r := &receipt{id: e.id, state: receiptPairing, inc: e.inc, expect: e.expect, empty: e.expect.Need[0] == e.expect.Need[1]}
	wait := e.expect.Wait
	if wait <= 0 {
		wait = c.times.Wait
	}
	r.wake = c.now + wait
	c.receipts[e.id] = r
	c.timers.set(r)
}

// producers registers with everybody the transfer hears from.
func (c *consumer) producers(e event) {
	r := c.receipts[e.id]
	if r == nil || r.state != receiptPairing {
		c.drop(e, dropState)
		return
	}
	r.state = receiptCollect
	for _, x := range e.links {
		s := c.sessions[x.peer]
		if s == nil {
			s = &outbound{peer: x.peer, inc: r.inc, floor: 1, links: map[uint64]*origin{}}
			c.sessions[x.peer] = s
		}
		s.last++
		l := &origin{receipt: r, session: s, seq: s.last, writes: x.writes}
		s.links[l.seq] = l
		r.links = append(r.links, l)
		if s.down || s.barred {
			l.held = s.barred
			c.lost(l)
		} else {
			c.send(l)
		}
	}
	for _, l := range r.links {
		if l.session.void {
			c.stop(r, Superseded, "")
			return
		}
	}
	c.check(r)
}

// status takes a producer's word.
func (c *consumer) status(e event) {
	s := c.sessions[e.peer]
	if s == nil {
		c.drop(e, dropStranger)
		return
	}
	l := s.links[e.seq]
	if l == nil {
		if e.seq >= s.floor {
			c.drop(e, dropStranger)
			return
		}
		c.drop(e, dropFloor)
		c.emit(effect{do: doFloor, peer: e.peer, seq: e.seq})
		return
	}
	st := e.msg.status
	if l.state == originFinal { // the first word stands
		if l.status.state != st.state {
			c.drop(e, dropConflict)
		} else {
			c.drop(e, dropRepeat)
		}
		c.emit(effect{do: doFloor, peer: e.peer, seq: e.seq})
		return
	}
	l.since, l.heard = 0, c.now
	if st.state.final() {
		c.final(l, st)
		return
	}
	if l.state == originSent || l.state == originLost && !l.receipt.failed() {
		l.state, l.wake = originAcked, 0
	}
	if r := l.receipt; r.state == receiptCollect && st.state >= statusPairing && !r.begun {
		r.begun = true
		r.wake = c.now + c.times.Deadline
		c.timers.set(r)
	}
}

// final settles a producer with P's last word, or with what stands for it.
func (c *consumer) final(l *origin, st status) {
	l.state, l.status, l.wake, l.held = originFinal, st, 0, false
	r := l.receipt
	l.drained = st.state != statusFailed || r.state == receiptReady || l.fenced
	c.settle(l.session)
	c.emit(effect{do: doFloor, peer: l.session.peer, seq: l.seq})
	switch {
	case r.state != receiptCollect:
		c.check(r)
	case st.state != statusDone:
		c.stop(r, st.reason, st.detail)
	default:
		if st.tokens > 0 && (r.tokens == 0 || st.tokens < r.tokens) {
			r.tokens = st.tokens
		}
		if l.writes {
			k, n := r.counted()
			c.emit(effect{do: doCount, peer: l.session.peer, id: r.id, k: k, n: n})
		}
		c.check(r)
	}
	if !l.drained && r.state == receiptStop {
		l.wake = c.now + c.times.NetDelay
		c.timers.set(l)
	}
	c.admit(l.session)
}

// settle lets the floor rise over the numbers that D asks about no more.
func (c *consumer) settle(s *outbound) {
	for s.floor <= s.last && s.links[s.floor].state == originFinal {
		delete(s.links, s.floor)
		s.floor++
	}
	if s.void && len(s.links) == 0 {
		delete(c.sessions, s.peer)
	}
}

// counted says how many writers are done, and of how many.
func (r *receipt) counted() (k, n int) {
	for _, l := range r.links {
		if !l.writes {
			continue
		}
		n++
		if l.state == originFinal && l.status.state == statusDone {
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
			c.report(r, Ready)
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
		c.report(r, Safe)
	}
	if r.state != receiptReady && r.state != receiptSafe {
		return
	}
	for _, l := range r.links {
		if l.state != originFinal {
			return
		}
	}
	r.wake = 0
	delete(c.receipts, r.id)
}

func (c *consumer) report(r *receipt, k ReportKind) {
	done, of := r.counted()
	c.emit(effect{do: doReport, report: k, id: r.id, reason: r.reason, detail: r.detail, tokens: r.tokens, k: done, n: of, expect: r.expect})
}

// stop gives a transfer up: negative at once, safe when nothing can land any more.
func (c *consumer) stop(r *receipt, why Reason, detail string) {
	r.state, r.reason, r.detail, r.wake = receiptStop, why, detail, 0
	c.report(r, Negative)
	for _, l := range r.links {
		switch l.state {
		case originSent, originAcked:
			if l.session.void {
				c.lost(l)
				continue
			}
			c.send(l)
		case originLost:
			l.wake = 0
			switch {
			case l.held: // never sent
				c.final(l, status{state: statusNotBegun, reason: Cancelled})
			case !l.fenced && !l.session.void:
				c.emit(effect{do: doFence, peer: l.session.peer})
			}
		}
		if l.state == originLost && (l.session.proof || l.session.sealed) {
			c.dead(l)
		}
	}
	c.check(r)
}
