package core

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// Consumer is the receiving side of one rank: the blocks that it waits for, and the state of every expected producer. Its
// states are the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type Consumer struct {
	core
	Sessions map[PeerID]*producerSession
	Incoming map[kvplane.TransferID]*IncomingTransfer
	order    lazyList[*producerSession]
	pending  lazyList[*IncomingTransfer]
	base     uint64 // of sessions that were forgotten, the highest number used: new ones count on from it
}

// producerSession is D's side of the session with one producer rank. It numbers the write requests.
type producerSession struct {
	Peer             PeerID
	inc              metadata.Incarnation
	down             bool
	void             bool   // the incarnation is gone
	ProvenDead       bool   // and so is its process
	fenced           bool   // fenced: nothing that it writes lands until it has answered for every fenced write request
	fencedForever    bool   // fenced for good
	forgotten        bool   // it is forgotten
	Last             uint64 // the highest number used
	LowWater         uint64 // the lowest number not settled
	Producers        map[uint64]*ProducerState
	order            lazyList[*ProducerState]
	queued           lazyList[*IncomingTransfer]
	past             [64]finalStatus // the last final words, by number
	Heartbeat        heartbeat
	unansweredFenced int           // fenced write requests that it has not answered for
	disconnectedAt   time.Duration // when its connection was lost while something was queued, until it is heard again; 0 is never
	wake             time.Duration // the next heartbeat, or the end of what is queued
}

func (s *producerSession) Due() time.Duration { return s.wake }

func (s *producerSession) in() bool { return !s.forgotten }

// keepsQueued says that P is asked to keep something that is queued here.
func (s *producerSession) keepsQueued() bool {
	return slices.ContainsFunc(s.queued.All, (*IncomingTransfer).isQueued)
}

// finalStatus is the final state that a producer gave for one number.
type finalStatus struct {
	seq   uint64
	state wire.State
}

// ProducerState is one expected producer of one transfer: one write request, as D sees it.
type ProducerState struct {
	incoming   *IncomingTransfer
	Session    *producerSession
	Seq        uint64
	Writes     bool
	Phase      producerPhase
	status     wire.Status
	flushed    bool
	Fenced     bool          // nothing that is written for it can land
	unsent     bool          // no WRITE_REQUEST was ever sent, so nothing is ever written for it
	heldBack   bool          // unsent because its session is fenced
	sawWriting bool          // P has said that it writes
	mustFlush  bool          // not_begun without an answer of the producer: flush as if it had failed
	heard      time.Duration // cancelled: when P was last heard, or CANCEL first sent
	since      time.Duration // when its connection was lost, until it is heard again; 0 is never
	wake       time.Duration
	again      backoff
}

func (l *ProducerState) Due() time.Duration { return l.wake }

// in says that its session still knows it: it has not come to its end, or bytes of it may still be on their way.
func (l *ProducerState) in() bool { return l.Session.Producers[l.Seq] == l }

// neverSent says that P cannot know of it: nothing was ever sent.
func (l *ProducerState) neverSent() bool { return l.unsent && !l.incoming.failed() }

// Quiesced says that nothing of this producer can land in the transfer's blocks any more.
func (l *ProducerState) Quiesced() bool {
	return l.Fenced || l.unsent || l.Phase == ProducerFinal && l.flushed
}

type producerPhase uint8

const (
	producerSent      producerPhase = iota + 1 // write request sent
	producerAcked                              // the producer has answered
	ProducerCancelled                          // cancel sent
	producerLost                               // the connection is lost
	ProducerFinal                              // done, not_begun or failed
)

func (s producerPhase) String() string {
	return [...]string{"none", "sent", "acked", "cancelled", "lost", "final"}[s]
}

// IncomingTransfer is one transfer on this rank.
type IncomingTransfer struct {
	ID               kvplane.TransferID
	State            incomingState
	inc              metadata.Incarnation
	Producers        []*ProducerState
	keepers          []*producerSession // queued: the producers that keep it
	until            time.Duration
	expect           *kvplane.Expectation
	empty            bool // nothing is needed
	producersUnknown bool // its producers are not known yet
	sawWriting       bool // P has the offer: from now on Times.Deadline counts
	tokens           int
	reason           kvplane.Reason
	detail           string
	wake             time.Duration
	retired          bool // it may be forgotten when all its producers are final
}

func (r *IncomingTransfer) Due() time.Duration { return r.wake }

func (r *IncomingTransfer) isQueued() bool { return r.State == incomingQueued }

func (r *IncomingTransfer) isPending() bool { return r.State <= incomingPairing }

type incomingState uint8

const (
	incomingQueued    incomingState = iota + 1 // announced; nothing is reserved
	incomingPairing                            // whom to expect is not known yet
	incomingReceiving                          // write requests are sent
	incomingReady                              // all is here
	IncomingFailed                             // failed; bytes may still land
	incomingReusable                           // failed; nothing lands any more
	incomingForgotten                          // forgotten
)

func (s incomingState) String() string {
	return [...]string{"none", "queued", "pairing", "receiving", "ready", "failed", "reusable", "forgotten"}[s]
}

// failed says that the transfer was given up, whether or not its blocks are safe already.
func (r *IncomingTransfer) failed() bool { return r.State >= IncomingFailed }

func NewConsumer(t kvplane.Times) *Consumer {
	return &Consumer{core: core{Times: t}, Sessions: map[PeerID]*producerSession{}, Incoming: map[kvplane.TransferID]*IncomingTransfer{}}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (c *Consumer) Step(e Event, out []Effect) []Effect {
	c.Out, c.Now, c.lines = out, e.At, c.lines[:0]
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
	case EvHeartbeatAck:
		c.heartbeatAck(e)
	case EvBye:
		c.bye(e)
	case EvFlushed:
		c.flushed(e)
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
func (c *Consumer) session(x Link, inc metadata.Incarnation) *producerSession {
	s := c.Sessions[x.Peer]
	if s == nil {
		s = &producerSession{Peer: x.Peer, inc: inc, down: x.Down, Last: c.base, LowWater: c.base + 1, Producers: map[uint64]*ProducerState{}}
		c.Sessions[x.Peer] = s
		c.order.add(s, (*producerSession).in)
	}
	return s
}

// link gives a write request its number.
func (c *Consumer) link(r *IncomingTransfer, s *producerSession, writes bool) *ProducerState {
	s.Last++
	l := &ProducerState{incoming: r, Session: s, Seq: s.Last, Writes: writes, unsent: true}
	s.Producers[l.Seq] = l
	s.order.add(l, (*ProducerState).in)
	r.Producers = append(r.Producers, l)
	c.scheduleHeartbeat(s, c.Times.Beat)
	return l
}

// settle raises the low-water mark over the numbers that are final.
func (c *Consumer) settle(s *producerSession) {
	for s.LowWater <= s.Last {
		if l := s.Producers[s.LowWater]; l != nil && l.Phase != ProducerFinal {
			break
		}
		s.LowWater++
	}
	if s.void && len(s.Producers) == 0 {
		s.forgotten, s.wake = true, 0
		delete(c.Sessions, s.Peer)
	}
}

// forget removes a transfer.
func (c *Consumer) forget(r *IncomingTransfer) {
	r.State, r.wake = incomingForgotten, 0
	delete(c.Incoming, r.ID)
}
