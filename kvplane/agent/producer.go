package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// producer is the writing side of one rank: what its engine has offered, and who has registered for it. Its states are
// the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type producer struct {
	core
	bounds   bounds
	sessions map[peerID]*inbound
	given    map[kvplane.TransferID]*given
	order    lineup[*inbound]
	held     lineup[*given]
	spent    fifo   // what may be forgotten first when the table is full
	past     uint64 // in sessions that were forgotten, numbers below it may have been written
	unborn   int    // given up by the engine before it was offered: its own word, which no bound stands in the way of
}

// inbound is a session as P sees it: what one consumer rank has registered.
type inbound struct {
	peer    peerID
	inc     metadata.Incarnation
	up      bool
	void    bool // the incarnation is gone; only writes in progress are left
	left    bool // it is forgotten
	parted  bool // it has been sent BYE
	waiting int  // registrations that wait for an offer
	writing int  // registrations that are being written
	blocks  int  // of the registrations that have not been posted
	floor   uint64
	low     uint64 // an unknown number below it is never begun: it was refused, is forgotten, or comes too late
	burnt   uint64 // and one below this may have been written, and has ended
	past    uint64 // so may an unknown one below this, in a session of the same consumer that was forgotten
	regs    map[uint64]*registration
	order   lineup[*registration]
}

func (s *inbound) in() bool { return !s.left }

// registration is one consumer of one transfer.
type registration struct {
	seq     uint64
	from    *inbound
	given   *given
	state   regState
	status  wire.Status   // what D is told
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
func (r *registration) in() bool { return r.from.regs[r.seq] == r }

type regState uint8

const (
	regWaiting regState = iota + 1 // W: no offer yet
	regPairing                     // H: offered, the peer cannot be reached
	regWriting                     // X: planned or posted
	regEnded                       // T: done, not_begun or failed
)

func (s regState) String() string {
	return [...]string{"none", "waiting", "pairing", "writing", "ended"}[s]
}

// given is one transfer on this rank.
type given struct {
	id     kvplane.TransferID
	state  givenState
	offer  *kvplane.Offer
	regs   []*registration
	owed   []peerID
	known  bool // owed is known
	reason kvplane.Reason
	detail string
	lease  time.Duration // held: until when, unless a beat extends it
	wake   time.Duration
}

func (g *given) Due() time.Duration { return g.wake }

func (g *given) isHeld() bool { return g.state == givenHeld }

type givenState uint8

const (
	givenEarly    givenState = iota + 1 // registered before it was offered
	givenHeld                           // offered; the engine must keep the blocks
	givenDraining                       // lost, but a write is in progress
	givenSpent                          // served, lost or aborted: a reference serves once
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

// bounds are these, where a test needs smaller ones.
type bounds struct {
	early         int // registrations of one session that wait for an offer
	registrations int // of one session, what is remembered of ended ones included
	given         int // transfers
}

func newProducer(t kvplane.Times) *producer {
	return &producer{
		core: core{times: t}, bounds: bounds{early: maxEarly, registrations: maxRegistrations, given: maxGiven},
		sessions: map[peerID]*inbound{}, given: map[kvplane.TransferID]*given{},
	}
}

// Step applies one event and appends to out what the owner must do. What an effect points to is good until the next
// Step.
func (p *producer) Step(e event, out []effect) []effect {
	p.out, p.now, p.beats = out, e.at, p.beats[:0]
	switch e.kind {
	case evRegister:
		p.register(e)
	case evCancel:
		p.cancel(e)
	case evFloor:
		p.floor(e)
	case evBeat:
		p.beat(e)
	case evOffer:
		p.offer(e)
	case evConsumers:
		p.consumers(e)
	case evUnpaired:
		p.unpaired(e)
	case evAbandon:
		p.abandon(e)
	case evRefused, evNothing, evWritten, evBroken:
		p.result(e)
	case evUp, evDown, evUnreachable:
		p.reach(e)
	case evGone:
		p.gone(e)
	case evClose:
		p.close(e)
	case evTick:
		for who := p.timers.Pop(p.now); who != nil; who = p.timers.Pop(p.now) {
			p.alarm(who)
		}
	default:
		p.drop(e, dropState)
	}
	out, p.out = p.out, nil
	return out
}

// session finds or makes the session of a message's sender.
func (p *producer) session(e event) *inbound {
	s := p.sessions[e.peer]
	if s == nil {
		s = &inbound{peer: e.peer, inc: e.inc, up: !e.down, past: p.past, regs: map[uint64]*registration{}}
		p.sessions[e.peer] = s
		p.order.add(s, (*inbound).in)
	}
	return s
}

func (p *producer) alarm(who alarm.Waiter) {
	switch v := who.(type) {
	case *registration:
		v.wake = 0
		switch v.state {
		case regWaiting:
			p.end(v, wire.Status{State: wire.NotBegun, Reason: kvplane.NoOffer}, true)
		case regWriting:
			if !v.unheard && v.seq >= v.from.floor {
				p.answer(v)
			}
		case regEnded:
			if p.now < v.until {
				v.wake = p.now + v.again.next()
				p.timers.Set(v)
				p.answer(v)
			}
		}
	case *given:
		v.wake = 0
		switch v.state {
		case givenHeld:
			p.expire(v)
		case givenEarly, givenSpent:
			p.retire(v)
		}
	}
}
