package kvplane

import (
	"time"

	"pdrouter/metadata"
)

// producer is the writing side of one rank: what its engine has offered, and who has registered for it. Its states are
// the tables of docs/kvplane.md. It performs no I/O, starts no goroutine and reads no clock.
type producer struct {
	times    Times
	sessions map[peerID]*inbound
	given    map[TransferID]*given
	timers   timers
	out      []effect
	now      time.Duration
}

// inbound is a session as P sees it: what one consumer rank has registered.
type inbound struct {
	peer  peerID
	inc   metadata.Incarnation
	up    bool
	void  bool // the incarnation is gone; only writes in progress are left
	floor uint64
	regs  map[uint64]*registration
}

// registration is one consumer of one transfer.
type registration struct {
	seq     uint64
	from    *inbound
	given   *given
	state   regState
	status  status // what D is told
	msg     *message
	wake    time.Duration
	again   backoff
	until   time.Duration // the final status is sent again until then
	unheard bool          // the result is for nobody: D has settled it, or its generation is void
}

func (r *registration) due() time.Duration { return r.wake }

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
	id     TransferID
	state  givenState
	offer  *Offer
	regs   []*registration
	owed   []peerID
	known  bool // owed is known
	reason Reason
	detail string
	wake   time.Duration
}

func (g *given) due() time.Duration { return g.wake }

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
	maxRegistrations = 4096 // of one session
	maxGiven         = 1 << 16
)

func newProducer(t Times) *producer {
	return &producer{times: t, sessions: map[peerID]*inbound{}, given: map[TransferID]*given{}}
}

// Step applies one event and appends to out what the owner must do.
func (p *producer) Step(e event, out []effect) []effect {
	p.out, p.now = out, e.at
	switch e.kind {
	case evRegister:
		p.register(e)
	case evCancel:
		p.cancel(e)
	case evFloor:
		p.floor(e)
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
	case evTick:
		for who := p.timers.pop(p.now); who != nil; who = p.timers.pop(p.now) {
			p.alarm(who)
		}
	default:
		p.drop(e, dropState)
	}
	out, p.out = p.out, nil
	return out
}

func (p *producer) emit(x effect) { p.out = append(p.out, x) }

func (p *producer) drop(e event, why drop) {
	p.emit(effect{do: doDrop, peer: e.peer, seq: e.seq, id: e.id, drop: why})
}

// session finds or makes the session of a message's sender.
func (p *producer) session(e event) *inbound {
	s := p.sessions[e.peer]
	if s == nil {
		s = &inbound{peer: e.peer, inc: e.inc, up: true, regs: map[uint64]*registration{}}
		p.sessions[e.peer] = s
	}
	return s
}

// raise takes the floor of a message: D has settled everything below it.
func (p *producer) raise(s *inbound, floor uint64) {
	if floor <= s.floor {
		return
	}
	if floor-s.floor <= maxRegistrations { // the rule: it rises by a few
		for seq := s.floor; seq < floor; seq++ {
			if r := s.regs[seq]; r != nil {
				p.forget(s, r)
			}
		}
	} else {
		for _, seq := range sortedKeys(s.regs) {
			if seq < floor {
				p.forget(s, s.regs[seq])
			}
		}
	}
	s.floor = floor
}

// floor takes the news of what D has settled: everything below the floor, and single numbers above it. Of these the
// final status is kept, for a delayed registration, but not sent again.
func (p *producer) floor(e event) {
	s := p.session(e)
	p.raise(s, e.msg.floor)
	for _, seq := range e.msg.settled {
		if r := s.regs[seq]; r != nil && r.state == regEnded {
			r.wake = 0
		}
	}
}

// forget removes a registration that D no longer asks about. A write in progress runs to its end.
func (p *producer) forget(s *inbound, r *registration) {
	if r.state == regWriting {
		return
	}
	delete(s.regs, r.seq)
	r.wake, r.unheard = 0, true
	if r.state != regEnded {
		p.end(r, status{state: statusNotBegun, reason: Cancelled}, false)
	}
}

func (p *producer) register(e event) {
	s := p.session(e)
	p.raise(s, e.msg.floor)
	if e.seq < s.floor {
		p.drop(e, dropFloor)
		return
	}
	if r := s.regs[e.seq]; r != nil {
		switch {
		case r.given.id != e.id || r.msg != nil && r.msg.digest != e.msg.digest:
			p.drop(e, dropConflict)
		default:
			p.drop(e, dropRepeat)
			p.answer(r)
		}
		return
	}
	r, reason := p.admit(s, e)
	if reason != 0 {
		p.refuse(e, reason)
		return
	}
	r.msg = e.msg
	r.state, r.status = regWaiting, status{state: statusWaiting}
	g := r.given
	switch {
	case g.state == givenSpent || g.state == givenDraining:
		p.end(r, status{state: statusNotBegun, reason: Spent, detail: g.detail}, true)
	case g.state == givenHeld && g.known:
		p.serve(r)
	default:
		r.wake = p.now + min(max(e.msg.wait, p.times.Resend), maxWait)
		p.timers.set(r)
		p.answer(r)
	}
}

// admit makes a registration under the event's number, unless a bound or an earlier one forbids it.
func (p *producer) admit(s *inbound, e event) (*registration, Reason) {
	if len(s.regs) >= maxRegistrations {
		return nil, Full
	}
	g := p.given[e.id]
	if g == nil {
		if len(p.given) >= maxGiven {
			return nil, Full
		}
		g = &given{id: e.id, state: givenEarly}
		p.given[e.id] = g
	}
	for _, other := range g.regs {
		if other.from == s && g.state >= givenDraining {
			return nil, Spent
		}
		if other.from == s {
			return nil, Conflict
		}
	}
	r := &registration{seq: e.seq, from: s, given: g}
	s.regs[e.seq] = r
	g.regs = append(g.regs, r)
	if g.state == givenEarly {
		g.wake = max(g.wake, p.now+min(e.msg.wait, maxWait)+p.times.Wait)
		p.timers.set(g)
	}
	return r, 0
}

// refuse answers without remembering anything: the same message would be refused again.
func (p *producer) refuse(e event, why Reason) {
	if why == Full {
		p.drop(e, dropFull)
	} else {
		p.drop(e, dropConflict)
	}
	p.emit(effect{do: doStatus, peer: e.peer, seq: e.seq, id: e.id, status: status{state: statusNotBegun, reason: why}})
}

func (p *producer) cancel(e event) {
	s := p.session(e)
	p.raise(s, e.msg.floor)
	if e.seq < s.floor {
		p.drop(e, dropFloor)
		return
	}
	r := s.regs[e.seq]
	if r == nil { // it has overtaken its registration, which will find this
		made, reason := p.admit(s, e)
		if reason != 0 {
			p.refuse(e, reason)
			return
		}
		p.end(made, status{state: statusNotBegun, reason: Cancelled}, true)
		return
	}
	if r.given.id != e.id {
		p.drop(e, dropConflict)
		return
	}
	switch r.state {
	case regWaiting, regPairing:
		p.end(r, status{state: statusNotBegun, reason: Cancelled}, true)
	default:
		p.answer(r)
	}
}

// answer tells D where a registration stands.
func (p *producer) answer(r *registration) {
	p.emit(effect{do: doStatus, peer: r.from.peer, seq: r.seq, id: r.given.id, status: r.status})
}

// serve begins to write for a registration whose transfer is held and whose owed consumers are known.
func (p *producer) serve(r *registration) {
	g := r.given
	if !g.owes(r.from.peer) {
		p.end(r, status{state: statusNotBegun, reason: Stranger}, true)
		return
	}
	r.wake = 0
	if !r.from.up {
		r.state, r.status = regPairing, status{state: statusPairing}
		p.emit(effect{do: doPair, peer: r.from.peer})
		return
	}
	r.state, r.status = regWriting, status{state: statusWriting}
	p.emit(effect{do: doPost, peer: r.from.peer, seq: r.seq, id: g.id, msg: r.msg, offer: g.offer})
}

func (g *given) owes(peer peerID) bool {
	for _, o := range g.owed {
		if o == peer {
			return true
		}
	}
	return false
}

// end brings a registration to its final status, and the transfer with it if that decides it.
func (p *producer) end(r *registration, s status, tell bool) {
	r.state, r.status = regEnded, s
	r.again = newBackoff(p.times)
	r.until = p.now + p.times.Lease
	r.wake = p.now + r.again.next()
	if r.msg != nil {
		r.msg = &message{digest: r.msg.digest} // the lists are needed no more
	}
	if r.unheard || r.seq < r.from.floor {
		r.wake = 0
		delete(r.from.regs, r.seq)
	} else {
		p.timers.set(r)
		if tell {
			p.answer(r)
		}
	}
	g := r.given
	if g.state == givenHeld && g.known && g.owes(r.from.peer) {
		if s.state != statusDone {
			p.lose(g, s.reason, s.detail)
			return
		}
		k := g.counted()
		p.emit(effect{do: doCount, peer: r.from.peer, id: g.id, k: k, n: len(g.owed)})
	}
	p.settle(g)
}
