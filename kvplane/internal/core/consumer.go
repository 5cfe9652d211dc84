package core

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// Consumer is the receiving side of one rank: the blocks it waits for, and what every expected producer has said. Its
// states are the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type Consumer struct {
	core
	Sessions map[PeerID]*outbound
	Receipts map[kvplane.TransferID]*Receipt
	order    lineup[*outbound]
	pending  lineup[*Receipt]
	base     uint64 // of sessions that were forgotten, the highest number used: new ones count on from it
}

// outbound is a session as D sees it: the registrations it has numbered.
type outbound struct {
	Peer   PeerID
	inc    metadata.Incarnation
	down   bool
	void   bool   // the incarnation is gone
	Proof  bool   // and so is its process
	barred bool   // fenced: nothing that it writes lands until it has answered for every fenced registration
	sealed bool   // fenced for good
	left   bool   // it is forgotten
	Last   uint64 // the highest number used
	Floor  uint64 // the lowest number not settled
	Links  map[uint64]*Origin
	order  lineup[*Origin]
	queued lineup[*Receipt]
	past   [64]verdict // the last final words, by number
	Pulse  pulse
	mute   int           // fenced registrations that it has not answered for
	parted time.Duration // when its connection was lost while something was queued, until it is heard again; 0 is never
	wake   time.Duration // the next beat, or the end of what is queued
}

func (s *outbound) Due() time.Duration { return s.wake }

func (s *outbound) in() bool { return !s.left }

// keeps says that P is asked to keep something that is queued here.
func (s *outbound) keeps() bool { return slices.ContainsFunc(s.queued.All, (*Receipt).isQueued) }

// verdict is a producer's final word on one number.
type verdict struct {
	seq   uint64
	state wire.State
}

// Origin is one expected producer of one transfer.
type Origin struct {
	receipt *Receipt
	Session *outbound
	Seq     uint64
	Writes  bool
	State   originState
	status  wire.Status
	drained bool
	Fenced  bool          // nothing that is written for it can land
	unsent  bool          // no REGISTER of it has ever been sent, so that nothing is ever written for it
	held    bool          // unsent because its session is barred
	began   bool          // P has said that it writes
	wary    bool          // not_begun in the name of one who cannot be asked: drain as if it had failed
	heard   time.Duration // stop: when the producer was last heard, or the cancel first sent
	since   time.Duration // when its connection was lost, until it is heard again; 0 is never
	wake    time.Duration
	again   backoff
}

func (l *Origin) Due() time.Duration { return l.wake }

// in says that its session still knows it: it has not come to its end, or bytes of it may still be on their way.
func (l *Origin) in() bool { return l.Session.Links[l.Seq] == l }

// stranger says that P cannot know of it: nothing was ever sent.
func (l *Origin) stranger() bool { return l.unsent && !l.receipt.failed() }

// Harmless says that nothing of this producer lands in the transfer's blocks any more.
func (l *Origin) Harmless() bool { return l.Fenced || l.unsent || l.State == OriginFinal && l.drained }

type originState uint8

const (
	originSent      originState = iota + 1 // S: registration sent
	originAcked                            // A: acknowledged
	OriginCancelled                        // C: cancel sent
	originLost                             // U: the connection is lost
	OriginFinal                            // F
)

func (s originState) String() string {
	return [...]string{"none", "sent", "acked", "cancelled", "lost", "final"}[s]
}

// Receipt is one transfer on this rank.
type Receipt struct {
	ID       kvplane.TransferID
	State    receiptState
	inc      metadata.Incarnation
	Links    []*Origin
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

func (r *Receipt) Due() time.Duration { return r.wake }

func (r *Receipt) isQueued() bool { return r.State == receiptQueued }

func (r *Receipt) isPending() bool { return r.State <= receiptPairing }

type receiptState uint8

const (
	receiptQueued  receiptState = iota + 1 // announced; nothing is reserved
	receiptPairing                         // whom to expect is not known yet
	receiptCollect                         // registered
	receiptReady                           // all is here
	ReceiptStop                            // failed; bytes may still land
	receiptSafe                            // failed; nothing lands any more
	receiptGone                            // forgotten
)

func (s receiptState) String() string {
	return [...]string{"none", "queued", "pairing", "collect", "ready", "stop", "safe", "gone"}[s]
}

// failed says that the transfer was given up, whether or not its blocks are safe already.
func (r *Receipt) failed() bool { return r.State >= ReceiptStop }

func NewConsumer(t kvplane.Times) *Consumer {
	return &Consumer{core: core{Times: t}, Sessions: map[PeerID]*outbound{}, Receipts: map[kvplane.TransferID]*Receipt{}}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (c *Consumer) Step(e Event, out []Effect) []Effect {
	c.Out, c.Now, c.beats = out, e.At, c.beats[:0]
	switch e.Kind {
	case EvQueue:
		c.queue(e)
	case EvExpect:
		c.expect(e)
	case EvProducers:
		c.producers(e)
	case EvUnpaired:
		c.unpaired(e)
	case EvAbandon:
		c.abandon(e)
	case EvStatus:
		c.status(e)
	case EvBeatAck:
		c.beatAck(e)
	case EvBye:
		c.bye(e)
	case EvDrained:
		c.drained(e)
	case EvFenced:
		c.fenced(e)
	case EvUp:
		c.up(e)
	case EvDown:
		c.down(e)
	case EvUnreachable:
	case EvGone:
		c.gone(e)
	case EvClose:
		c.close(e)
	case EvTick:
		for who := c.timers.Pop(c.Now); who != nil; who = c.timers.Pop(c.Now) {
			c.alarm(who)
		}
	default:
		c.drop(e, dropState)
	}
	out, c.Out = c.Out, nil
	return out
}

// session finds or makes the session with a producer.
func (c *Consumer) session(x Link, inc metadata.Incarnation) *outbound {
	s := c.Sessions[x.Peer]
	if s == nil {
		s = &outbound{Peer: x.Peer, inc: inc, down: x.Down, Last: c.base, Floor: c.base + 1, Links: map[uint64]*Origin{}}
		c.Sessions[x.Peer] = s
		c.order.add(s, (*outbound).in)
	}
	return s
}

// link numbers a registration.
func (c *Consumer) link(r *Receipt, s *outbound, writes bool) *Origin {
	s.Last++
	l := &Origin{receipt: r, Session: s, Seq: s.Last, Writes: writes, unsent: true}
	s.Links[l.Seq] = l
	s.order.add(l, (*Origin).in)
	r.Links = append(r.Links, l)
	c.stir(s, c.Times.Beat)
	return l
}

// settle lets the floor rise over the numbers that D asks about no more.
func (c *Consumer) settle(s *outbound) {
	for s.Floor <= s.Last {
		if l := s.Links[s.Floor]; l != nil && l.State != OriginFinal {
			break
		}
		s.Floor++
	}
	if s.void && len(s.Links) == 0 {
		s.left, s.wake = true, 0
		delete(c.Sessions, s.Peer)
	}
}

// forget removes a transfer.
func (c *Consumer) forget(r *Receipt) {
	r.State, r.wake = receiptGone, 0
	delete(c.Receipts, r.ID)
}
