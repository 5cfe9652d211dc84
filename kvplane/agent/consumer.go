package agent

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// consumer is the receiving side of one rank: the blocks it waits for, and what every expected producer has said. Its
// states are the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type consumer struct {
	core
	sessions map[peerID]*outbound
	receipts map[kvplane.TransferID]*receipt
	order    lineup[*outbound]
	pending  lineup[*receipt]
	base     uint64 // of sessions that were forgotten, the highest number used: new ones count on from it
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
	left   bool   // it is forgotten
	last   uint64 // the highest number used
	floor  uint64 // the lowest number not settled
	links  map[uint64]*origin
	order  lineup[*origin]
	queued lineup[*receipt]
	past   [64]verdict // the last final words, by number
	pulse  pulse
	mute   int           // fenced registrations that it has not answered for
	parted time.Duration // when its connection was lost while something was queued, until it is heard again; 0 is never
	wake   time.Duration // the next beat, or the end of what is queued
}

func (s *outbound) Due() time.Duration { return s.wake }

func (s *outbound) in() bool { return !s.left }

// keeps says that P is asked to keep something that is queued here.
func (s *outbound) keeps() bool { return slices.ContainsFunc(s.queued.all, (*receipt).isQueued) }

// verdict is a producer's final word on one number.
type verdict struct {
	seq   uint64
	state wire.State
}

// origin is one expected producer of one transfer.
type origin struct {
	receipt *receipt
	session *outbound
	seq     uint64
	writes  bool
	state   originState
	status  wire.Status
	drained bool
	fenced  bool          // nothing that is written for it can land
	unsent  bool          // no REGISTER of it has ever been sent, so that nothing is ever written for it
	held    bool          // unsent because its session is barred
	began   bool          // P has said that it writes
	wary    bool          // not_begun in the name of one who cannot be asked: drain as if it had failed
	heard   time.Duration // stop: when the producer was last heard, or the cancel first sent
	since   time.Duration // when its connection was lost, until it is heard again; 0 is never
	wake    time.Duration
	again   backoff
}

func (l *origin) Due() time.Duration { return l.wake }

// in says that its session still knows it: it has not come to its end, or bytes of it may still be on their way.
func (l *origin) in() bool { return l.session.links[l.seq] == l }

// stranger says that P cannot know of it: nothing was ever sent.
func (l *origin) stranger() bool { return l.unsent && !l.receipt.failed() }

// harmless says that nothing of this producer lands in the transfer's blocks any more.
func (l *origin) harmless() bool { return l.fenced || l.unsent || l.state == originFinal && l.drained }

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
	id       kvplane.TransferID
	state    receiptState
	inc      metadata.Incarnation
	links    []*origin
	waits    []*outbound // queued: who is told to keep it
	until    time.Duration
	expect   *kvplane.Expectation
	empty    bool // nothing is needed
	unpaired bool // whom it hears from is not known yet
	begun    bool // a producer writes: the shorter deadline runs
	tokens   int
	reason   kvplane.Reason
	detail   string
	wake     time.Duration
	retired  bool // the engine has heard the last of it
}

func (r *receipt) Due() time.Duration { return r.wake }

func (r *receipt) isQueued() bool { return r.state == receiptQueued }

func (r *receipt) isPending() bool { return r.state <= receiptPairing }

type receiptState uint8

const (
	receiptQueued  receiptState = iota + 1 // announced; nothing is reserved
	receiptPairing                         // whom to expect is not known yet
	receiptCollect                         // registered
	receiptReady                           // all is here
	receiptStop                            // failed; bytes may still land
	receiptSafe                            // failed; nothing lands any more
	receiptGone                            // forgotten
)

func (s receiptState) String() string {
	return [...]string{"none", "queued", "pairing", "collect", "ready", "stop", "safe", "gone"}[s]
}

// failed says that the transfer was given up, whether or not its blocks are safe already.
func (r *receipt) failed() bool { return r.state >= receiptStop }

func newConsumer(t kvplane.Times) *consumer {
	return &consumer{core: core{times: t}, sessions: map[peerID]*outbound{}, receipts: map[kvplane.TransferID]*receipt{}}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (c *consumer) Step(e event, out []effect) []effect {
	c.out, c.now, c.beats = out, e.at, c.beats[:0]
	switch e.kind {
	case evQueue:
		c.queue(e)
	case evExpect:
		c.expect(e)
	case evProducers:
		c.producers(e)
	case evUnpaired:
		c.unpaired(e)
	case evAbandon:
		c.abandon(e)
	case evStatus:
		c.status(e)
	case evBeatAck:
		c.beatAck(e)
	case evBye:
		c.bye(e)
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
	case evClose:
		c.close(e)
	case evTick:
		for who := c.timers.Pop(c.now); who != nil; who = c.timers.Pop(c.now) {
			c.alarm(who)
		}
	default:
		c.drop(e, dropState)
	}
	out, c.out = c.out, nil
	return out
}

// session finds or makes the session with a producer.
func (c *consumer) session(x linkTo, inc metadata.Incarnation) *outbound {
	s := c.sessions[x.peer]
	if s == nil {
		s = &outbound{peer: x.peer, inc: inc, down: x.down, last: c.base, floor: c.base + 1, links: map[uint64]*origin{}}
		c.sessions[x.peer] = s
		c.order.add(s, (*outbound).in)
	}
	return s
}

// link numbers a registration.
func (c *consumer) link(r *receipt, s *outbound, writes bool) *origin {
	s.last++
	l := &origin{receipt: r, session: s, seq: s.last, writes: writes, unsent: true}
	s.links[l.seq] = l
	s.order.add(l, (*origin).in)
	r.links = append(r.links, l)
	c.stir(s, c.times.Beat)
	return l
}

// settle lets the floor rise over the numbers that D asks about no more.
func (c *consumer) settle(s *outbound) {
	for s.floor <= s.last {
		if l := s.links[s.floor]; l != nil && l.state != originFinal {
			break
		}
		s.floor++
	}
	if s.void && len(s.links) == 0 {
		s.left, s.wake = true, 0
		delete(c.sessions, s.peer)
	}
}

// forget removes a transfer.
func (c *consumer) forget(r *receipt) {
	r.state, r.wake = receiptGone, 0
	delete(c.receipts, r.id)
}
