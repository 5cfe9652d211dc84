package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// Producer is the writing side of one rank: what its engine has offered, and the write requests for it. Its states are
// the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type Producer struct {
	core
	Bounds               Bounds
	Sessions             map[PeerID]*consumerSession
	Outgoing             map[kvplane.TransferID]*outgoing
	order                lazyList[*consumerSession]
	held                 lazyList[*outgoing]
	tombstones           fifo   // what nothing waits for: the first is forgotten first when the table is full
	pastWrittenBelow     uint64 // in sessions that were forgotten, numbers below it may have been written
	abandonedBeforeOffer int    // transfers that the engine gave up before it offered them; no bound applies
}

// consumerSession is P's side of the session with one consumer rank: its write requests.
type consumerSession struct {
	peer              PeerID
	inc               metadata.Incarnation
	up                bool
	void              bool // the incarnation is gone; only writes in progress are left
	forgotten         bool // it is forgotten
	byeSent           bool // it has been sent BYE
	waiting           int  // write requests that wait for an offer
	writing           int  // write requests that are being written
	Blocks            int  // of the write requests that have not been posted
	LowWater          uint64
	NeverStartBelow   uint64 // an unknown number below it is never begun: it was refused, is forgotten, or comes too late
	maybeWrittenBelow uint64 // and one below this may have been written, and has ended
	pastWrittenBelow  uint64 // so may an unknown one below this, in a session of the same consumer that was forgotten
	Requests          map[uint64]*writeRequest
	Order             lazyList[*writeRequest]
}

func (s *consumerSession) in() bool { return !s.forgotten }

// writeRequest is one consumer of one transfer, as P sees it.
type writeRequest struct {
	Seq          uint64
	from         *consumerSession
	outgoing     *outgoing
	State        requestState
	Status       wire.Status   // the last STATUS
	lastReported requestState  // what the last answer to a HEARTBEAT has said
	msg          *wire.Message // until it has ended
	asked        bool          // its WRITE_REQUEST is here
	digest       [16]byte      // of that
	wake         time.Duration
	again        backoff
	until        time.Duration // the final status is sent again until then
	noStatus     bool          // no STATUS is sent any more: D has settled it, or its generation is void
}

func (r *writeRequest) Due() time.Duration { return r.wake }

// in says that its session still knows it.
func (r *writeRequest) in() bool { return r.from.Requests[r.Seq] == r }

type requestState uint8

const (
	requestWaiting requestState = iota + 1 // no offer yet
	requestPairing                         // offered, the peer cannot be reached
	RequestWriting                         // planned or posted
	RequestEnded                           // done, not_begun or failed
)

func (s requestState) String() string {
	return [...]string{"none", "waiting", "pairing", "writing", "ended"}[s]
}

// outgoing is one transfer that this rank writes.
type outgoing struct {
	ID        kvplane.TransferID
	State     outgoingState
	Offer     *kvplane.Offer
	Requests  []*writeRequest
	Owed      []PeerID
	OwedKnown bool // owed is known
	reason    kvplane.Reason
	detail    string
	lease     time.Duration // held: until when, unless a heartbeat extends it
	wake      time.Duration
}

func (g *outgoing) Due() time.Duration { return g.wake }

func (g *outgoing) isHeld() bool { return g.State == OutgoingHeld }

type outgoingState uint8

const (
	OutgoingEarly     outgoingState = iota + 1 // requested before it was offered
	OutgoingHeld                               // offered; the engine must keep the blocks
	outgoingDraining                           // lost, but a write is in progress
	OutgoingTombstone                          // served, failed or aborted: an id serves once
)

func (s outgoingState) String() string {
	return [...]string{"none", "early", "held", "draining", "tombstone"}[s]
}

// Bounds on what peers may make an agent remember.
const (
	maxEarly    = 1 << 12
	maxRequests = 1 << 14
	maxOutgoing = 1 << 16
)

// Bounds are these, where a test needs smaller ones.
type Bounds struct {
	Early    int // write requests of one session that wait for an offer
	Requests int // of one session, what is remembered of ended ones included
	Outgoing int // transfers
}

func NewProducer(t kvplane.Times) *Producer {
	return &Producer{
		core: core{Times: t}, Bounds: Bounds{Early: maxEarly, Requests: maxRequests, Outgoing: maxOutgoing},
		Sessions: map[PeerID]*consumerSession{}, Outgoing: map[kvplane.TransferID]*outgoing{},
	}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (p *Producer) Step(e Event, out []Effect) []Effect {
	p.Out, p.Now, p.lines = out, e.At, p.lines[:0]
	switch e.Kind {
	case EvWriteRequest:
		p.writeRequest(e)
	case EvCancel:
		p.cancel(e)
	case EvAck:
		p.ack(e)
	case EvHeartbeat:
		p.heartbeat(e)
	case EvOffer:
		p.offer(e)
	case EvConsumers:
		p.consumers(e)
	case EvUnpaired:
		p.unpaired(e)
	case EvAbandon:
		p.abandon(e)
	case EvRefused, EvNothing, EvWritten, EvBroken:
		p.result(e)
	case EvUp, EvDown, EvUnreachable:
		p.reach(e)
	case EvGone:
		p.gone(e)
	case EvClose:
		p.close(e)
	case EvTick:
		for who := p.timers.Pop(p.Now); who != nil; who = p.timers.Pop(p.Now) {
			p.alarm(who)
		}
	default:
		p.drop(e, dropState)
	}
	out, p.Out = p.Out, nil
	return out
}

// session finds or makes the session of a message's sender.
func (p *Producer) session(e Event) *consumerSession {
	s := p.Sessions[e.Peer]
	if s == nil {
		s = &consumerSession{peer: e.Peer, inc: e.Inc, up: !e.Down, pastWrittenBelow: p.pastWrittenBelow, Requests: map[uint64]*writeRequest{}}
		p.Sessions[e.Peer] = s
		p.order.add(s, (*consumerSession).in)
	}
	return s
}

func (p *Producer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *writeRequest:
		v.wake = 0
		switch v.State {
		case requestWaiting:
			p.end(v, wire.Status{State: wire.NotBegun, Reason: kvplane.NoOffer}, true)
		case RequestWriting:
			if !v.noStatus && v.Seq >= v.from.LowWater {
				p.answer(v)
			}
		case RequestEnded:
			if p.Now < v.until {
				v.wake = p.Now + v.again.next()
				p.timers.Set(v)
				p.answer(v)
			}
		}
	case *outgoing:
		v.wake = 0
		switch v.State {
		case OutgoingHeld:
			p.expire(v)
		case OutgoingEarly, OutgoingTombstone:
			p.retire(v)
		}
	}
}
