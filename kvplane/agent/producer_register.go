package agent

import (
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

// raise takes the floor of a message: D has settled everything below it.
func (p *producer) raise(s *inbound, floor uint64) {
	if floor <= s.floor {
		return
	}
	if floor-s.floor <= uint64(p.bounds.registrations) { // the rule: it rises by a few
		for seq := s.floor; seq < floor; seq++ {
			if r := s.regs[seq]; r != nil {
				p.forget(s, r)
			}
		}
	} else {
		for _, r := range s.order.all {
			if r.in() && r.seq < floor {
				p.forget(s, r)
			}
		}
	}
	s.floor = floor
}

// floor takes the news of what D has settled: everything below the floor, and single numbers above it. Of these the
// final status is kept, for a delayed registration, but not sent again.
func (p *producer) floor(e event) {
	s := p.session(e)
	p.raise(s, e.msg.Floor)
	for _, seq := range e.msg.Settled {
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
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, false)
	}
}

func (p *producer) register(e event) {
	s := p.session(e)
	p.raise(s, e.msg.Floor)
	if e.seq < s.floor {
		p.drop(e, dropFloor)
		return
	}
	if r := s.regs[e.seq]; r != nil {
		switch {
		case r.given.id != e.id || r.asked && r.digest != e.msg.Digest:
			p.drop(e, dropConflict)
		default:
			p.drop(e, dropRepeat)
			p.answer(r)
		}
		return
	}
	r, reason := p.admit(s, e)
	if reason != 0 {
		p.refuse(s, e, reason)
		return
	}
	r.msg, r.digest, r.asked = e.msg, e.msg.Digest, true
	r.state, r.status = regWaiting, wire.Status{State: wire.Waiting}
	s.waiting++
	s.blocks += blocks(e.msg.Groups)
	g := r.given
	switch {
	case g.state == givenSpent || g.state == givenDraining:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: g.late(), Detail: g.detail}, true)
	case g.state == givenHeld && g.known:
		p.serve(r)
	default:
		r.wake = p.now + min(max(e.msg.Wait, p.times.Resend), kvplane.MaxWait)
		p.timers.Set(r)
		p.answer(r)
	}
}

// admit makes a registration under the event's number, unless a bound or an earlier one forbids it.
func (p *producer) admit(s *inbound, e event) (*registration, kvplane.Reason) {
	switch {
	case p.closing:
		return nil, kvplane.Closing
	case e.seq < s.low:
		return nil, kvplane.Spent
	case len(s.regs) >= p.bounds.registrations,
		e.budget > 0 && s.blocks+blocks(e.msg.Groups) > e.budget:
		return nil, kvplane.Full
	}
	g := p.given[e.id]
	if s.waiting >= p.bounds.early && e.kind == evRegister && (g == nil || g.state == givenEarly) {
		return nil, kvplane.Full
	}
	if g == nil {
		if g = p.early(e.id); g == nil {
			return nil, kvplane.Full
		}
	}
	for _, other := range g.regs {
		if other.from == s && g.state >= givenDraining {
			return nil, kvplane.Spent
		}
		if other.from == s {
			return nil, kvplane.Conflict
		}
	}
	r := &registration{seq: e.seq, from: s, given: g}
	s.regs[e.seq] = r
	s.order.add(r, (*registration).in)
	g.regs = append(g.regs, r)
	if g.state == givenEarly {
		g.wake = max(g.wake, p.now+min(e.msg.Wait, kvplane.MaxWait)+p.times.Wait)
		p.timers.Set(g)
	}
	return r, 0
}

// refuse answers in a final state without a place to keep it. That the number is not begun later, when there is room,
// is remembered in one number of the session. So are the numbers below it that are still on their way: each is refused
// when it comes, and told so.
func (p *producer) refuse(s *inbound, e event, why kvplane.Reason) {
	switch why {
	case kvplane.Full:
		p.drop(e, dropFull)
	case kvplane.Closing:
		p.drop(e, dropState)
	default:
		p.drop(e, dropConflict)
	}
	st := s.never(e.seq, why)
	if e.seq < s.low {
		st = s.forgotten(e.seq)
	}
	s.low = max(s.low, e.seq+1)
	p.emit(effect{do: doStatus, peer: e.peer, seq: e.seq, id: e.id, status: st})
}

// forgotten is what D is told of an unknown number that is never begun. If it may have been written, D must not take it
// for one that never was.
func (s *inbound) forgotten(seq uint64) wire.Status {
	if seq < s.burnt {
		return wire.Status{State: wire.Failed, Reason: kvplane.Spent}
	}
	return s.never(seq, kvplane.Spent)
}

// never is what D is told of a number that is not begun here. If it may have been written before the session was forgotten,
// D must drain: it is told that a write has failed.
func (s *inbound) never(seq uint64, why kvplane.Reason) wire.Status {
	if seq < s.past {
		return wire.Status{State: wire.Failed, Reason: why}
	}
	return wire.Status{State: wire.NotBegun, Reason: why}
}

func (p *producer) cancel(e event) {
	s := p.session(e)
	p.raise(s, e.msg.Floor)
	if e.seq < s.floor {
		p.drop(e, dropFloor)
		return
	}
	r := s.regs[e.seq]
	if r == nil { // it has overtaken its registration, which will find this
		made, reason := p.admit(s, e)
		if reason != 0 {
			p.refuse(s, e, reason)
			return
		}
		p.end(made, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
		return
	}
	if r.given.id != e.id {
		p.drop(e, dropConflict)
		return
	}
	switch r.state {
	case regWaiting, regPairing:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
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
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Stranger}, true)
		return
	}
	if why, detail := differ(g.offer, r.msg); why != 0 {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: why, Detail: detail}, true)
		return
	}
	r.wake = 0
	if r.state == regWaiting {
		r.from.waiting--
	}
	if !r.from.up {
		r.state, r.status = regPairing, wire.Status{State: wire.Pairing}
		p.answer(r)
		p.emit(effect{do: doPair, peer: r.from.peer})
		return
	}
	r.state, r.status = regWriting, wire.Status{State: wire.Writing}
	r.from.writing++
	p.emit(effect{do: doPost, peer: r.from.peer, seq: r.seq, id: g.id, msg: r.msg, offer: g.offer})
	p.letGo(r)
	r.wake = p.now + p.times.Resend // D is told, unless there was nothing to write or it is written by then
	p.timers.Set(r)
}

// differ says why an offer and a registration cannot belong together, where both sides know enough to tell.
func differ(o *kvplane.Offer, m *wire.Message) (kvplane.Reason, string) {
	var none [16]byte
	switch {
	case o.Ticket != m.Ticket && o.Ticket != none: // without one, D could be anybody's
		return kvplane.Ticket, fmt.Sprintf("ticket: %x on P, %x on D", o.Ticket, m.Ticket)
	case o.Hash != m.Hash && o.Hash != none && m.Hash != none:
		return kvplane.Tokens, fmt.Sprintf("token hash: %x on P, %x on D", o.Hash, m.Hash)
	}
	return 0, ""
}

// letGo drops a registration's lists: it is posted or has ended, and D may have given its blocks away before P hears
// how the write has ended.
func (p *producer) letGo(r *registration) {
	if r.msg != nil {
		r.from.blocks -= blocks(r.msg.Groups)
		r.msg = nil
	}
}

// end brings a registration to its final status, and the transfer with it if that decides it.
func (p *producer) end(r *registration, s wire.Status, tell bool) {
	switch r.state {
	case regWaiting:
		r.from.waiting--
	case regWriting:
		r.from.writing--
	}
	p.letGo(r)
	if s.State == wire.NotBegun {
		s.State = r.from.never(r.seq, s.Reason).State
	}
	r.state, r.status = regEnded, s
	r.again = newBackoff(p.times)
	r.until = p.now + p.times.Lease
	r.wake = p.now + r.again.next()
	if r.unheard || r.seq < r.from.floor {
		r.wake = 0
		delete(r.from.regs, r.seq)
	} else {
		p.timers.Set(r)
		if tell {
			p.answer(r)
		}
	}
	g := r.given
	if s.State != wire.Done && g.state == givenHeld && g.known && g.owes(r.from.peer) {
		p.lose(g, s.Reason, s.Detail)
		return
	}
	p.settle(g)
}
