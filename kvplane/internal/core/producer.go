package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// Producer is the writing side of one rank: what its engine has offered, and who has registered for it. Its states are
// the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type Producer struct {
	core
	Bounds   Bounds
	Sessions map[PeerID]*inbound
	Given    map[kvplane.TransferID]*given
	order    lineup[*inbound]
	held     lineup[*given]
	spent    fifo   // what may be forgotten first when the table is full
	past     uint64 // in sessions that were forgotten, numbers below it may have been written
	unborn   int    // given up by the engine before it was offered: its own word, which no bound stands in the way of
}

// inbound is a session as P sees it: what one consumer rank has registered.
type inbound struct {
	peer    PeerID
	inc     metadata.Incarnation
	up      bool
	void    bool // the incarnation is gone; only writes in progress are left
	left    bool // it is forgotten
	parted  bool // it has been sent BYE
	waiting int  // registrations that wait for an offer
	writing int  // registrations that are being written
	Blocks  int  // of the registrations that have not been posted
	Floor   uint64
	Low     uint64 // an unknown number below it is never begun: it was refused, is forgotten, or comes too late
	burnt   uint64 // and one below this may have been written, and has ended
	past    uint64 // so may an unknown one below this, in a session of the same consumer that was forgotten
	Regs    map[uint64]*registration
	Order   lineup[*registration]
}

func (s *inbound) in() bool { return !s.left }

// registration is one consumer of one transfer.
type registration struct {
	Seq     uint64
	from    *inbound
	given   *given
	State   regState
	Status  wire.Status   // what D is told
	beaten  regState      // what the last answer to a BEAT has said
	msg     *wire.Message // until it has ended
	asked   bool          // its REGISTER is here
	digest  [16]byte      // of that
	wake    time.Duration
	again   backoff
	until   time.Duration // the final status is sent again until then
	unheard bool          // the result is for nobody: D has settled it, or its generation is void
}

func (r *registration) Due() time.Duration { return r.wake }

// in says that its session still knows it.
func (r *registration) in() bool { return r.from.Regs[r.Seq] == r }

type regState uint8

const (
	regWaiting regState = iota + 1 // W: no offer yet
	regPairing                     // H: offered, the peer cannot be reached
	RegWriting                     // X: planned or posted
	RegEnded                       // T: done, not_begun or failed
)

func (s regState) String() string {
	return [...]string{"none", "waiting", "pairing", "writing", "ended"}[s]
}

// given is one transfer on this rank.
type given struct {
	ID     kvplane.TransferID
	State  givenState
	Offer  *kvplane.Offer
	Regs   []*registration
	Owed   []PeerID
	Known  bool // owed is known
	reason kvplane.Reason
	detail string
	lease  time.Duration // held: until when, unless a beat extends it
	wake   time.Duration
}

func (g *given) Due() time.Duration { return g.wake }

func (g *given) isHeld() bool { return g.State == GivenHeld }

type givenState uint8

const (
	GivenEarly    givenState = iota + 1 // registered before it was offered
	GivenHeld                           // offered; the engine must keep the blocks
	givenDraining                       // lost, but a write is in progress
	GivenSpent                          // served, lost or aborted: a reference serves once
)

func (s givenState) String() string {
	return [...]string{"none", "early", "held", "draining", "spent"}[s]
}

// Bounds on what peers may make an agent remember.
const (
	maxEarly         = 1 << 12
	maxRegistrations = 1 << 14
	maxGiven         = 1 << 16
)

// Bounds are these, where a test needs smaller ones.
type Bounds struct {
	Early         int // registrations of one session that wait for an offer
	Registrations int // of one session, what is remembered of ended ones included
	Given         int // transfers
}

func NewProducer(t kvplane.Times) *Producer {
	return &Producer{
		core: core{Times: t}, Bounds: Bounds{Early: maxEarly, Registrations: maxRegistrations, Given: maxGiven},
		Sessions: map[PeerID]*inbound{}, Given: map[kvplane.TransferID]*given{},
	}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (p *Producer) Step(e Event, out []Effect) []Effect {
	p.Out, p.Now, p.beats = out, e.At, p.beats[:0]
	switch e.Kind {
	case EvRegister:
		p.register(e)
	case EvCancel:
		p.cancel(e)
	case EvFloor:
		p.floor(e)
	case EvBeat:
		p.beat(e)
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
func (p *Producer) session(e Event) *inbound {
	s := p.Sessions[e.Peer]
	if s == nil {
		s = &inbound{peer: e.Peer, inc: e.Inc, up: !e.Down, past: p.past, Regs: map[uint64]*registration{}}
		p.Sessions[e.Peer] = s
		p.order.add(s, (*inbound).in)
	}
	return s
}

func (p *Producer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *registration:
		v.wake = 0
		switch v.State {
		case regWaiting:
			p.end(v, wire.Status{State: wire.NotBegun, Reason: kvplane.NoOffer}, true)
		case RegWriting:
			if !v.unheard && v.Seq >= v.from.Floor {
				p.answer(v)
			}
		case RegEnded:
			if p.Now < v.until {
				v.wake = p.Now + v.again.next()
				p.timers.Set(v)
				p.answer(v)
			}
		}
	case *given:
		v.wake = 0
		switch v.State {
		case GivenHeld:
			p.expire(v)
		case GivenEarly, GivenSpent:
			p.retire(v)
		}
	}
}
