package core

import (
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/wire"
)

// raise takes the floor of a message: D has settled everything below it.
func (p *Producer) raise(s *inbound, floor uint64) {
	if floor <= s.Floor {
		return
	}
	if floor-s.Floor <= uint64(p.Bounds.Registrations) { // the rule: it rises by a few
		for seq := s.Floor; seq < floor; seq++ {
			if r := s.Regs[seq]; r != nil {
				p.forget(s, r)
			}
		}
	} else {
		for _, r := range s.Order.All {
			if r.in() && r.Seq < floor {
				p.forget(s, r)
			}
		}
	}
	s.Floor = floor
}

// floor takes the news of what D has settled: everything below the floor, and single numbers above it. Of these the
// final status is kept, for a delayed registration, but not sent again.
func (p *Producer) floor(e Event) {
	s := p.session(e)
	p.raise(s, e.Msg.Floor)
	for _, seq := range e.Msg.Settled {
		if r := s.Regs[seq]; r != nil && r.State == RegEnded {
			r.wake = 0
		}
	}
}

// forget removes a registration that D no longer asks about. A write in progress runs to its end.
func (p *Producer) forget(s *inbound, r *registration) {
	if r.State == RegWriting {
		return
	}
	delete(s.Regs, r.Seq)
	r.wake, r.unheard = 0, true
	if r.State != RegEnded {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, false)
	}
}

func (p *Producer) register(e Event) {
	s := p.session(e)
	p.raise(s, e.Msg.Floor)
	if e.Seq < s.Floor {
		p.drop(e, DropFloor)
		return
	}
	if r := s.Regs[e.Seq]; r != nil {
		switch {
		case r.given.ID != e.ID || r.asked && r.digest != e.Msg.Digest:
			p.drop(e, dropConflict)
		default:
			p.drop(e, DropRepeat)
			p.answer(r)
		}
		return
	}
	r, reason := p.admit(s, e)
	if reason != 0 {
		p.refuse(s, e, reason)
		return
	}
	r.msg, r.digest, r.asked = e.Msg, e.Msg.Digest, true
	r.State, r.Status = regWaiting, wire.Status{State: wire.Waiting}
	s.waiting++
	s.Blocks += transfer.CountBlocks(e.Msg.Groups)
	g := r.given
	switch {
	case g.State == GivenSpent || g.State == givenDraining:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: g.late(), Detail: g.detail}, true)
	case g.State == GivenHeld && g.Known:
		p.serve(r)
	default:
		r.wake = p.Now + min(max(e.Msg.Wait, p.Times.Resend), kvplane.MaxWait)
		p.timers.Set(r)
		p.answer(r)
	}
}

// admit makes a registration under the event's number, unless a bound or an earlier one forbids it.
func (p *Producer) admit(s *inbound, e Event) (*registration, kvplane.Reason) {
	switch {
	case p.closing:
		return nil, kvplane.Closing
	case e.Seq < s.Low:
		return nil, kvplane.Spent
	case len(s.Regs) >= p.Bounds.Registrations,
		e.Budget > 0 && s.Blocks+transfer.CountBlocks(e.Msg.Groups) > e.Budget:
		return nil, kvplane.Full
	}
	g := p.Given[e.ID]
	if s.waiting >= p.Bounds.Early && e.Kind == EvRegister && (g == nil || g.State == GivenEarly) {
		return nil, kvplane.Full
	}
	if g == nil {
		if g = p.early(e.ID); g == nil {
			return nil, kvplane.Full
		}
	}
	for _, other := range g.Regs {
		if other.from == s && g.State >= givenDraining {
			return nil, kvplane.Spent
		}
		if other.from == s {
			return nil, kvplane.Conflict
		}
	}
	r := &registration{Seq: e.Seq, from: s, given: g}
	s.Regs[e.Seq] = r
	s.Order.add(r, (*registration).in)
	g.Regs = append(g.Regs, r)
	if g.State == GivenEarly {
		g.wake = max(g.wake, p.Now+min(e.Msg.Wait, kvplane.MaxWait)+p.Times.Wait)
		p.timers.Set(g)
	}
	return r, 0
}

// refuse answers in a final state without a place to keep it. That the number is not begun later, when there is room,
// is remembered in one number of the session. So are the numbers below it that are still on their way: each is refused
// when it comes, and told so.
func (p *Producer) refuse(s *inbound, e Event, why kvplane.Reason) {
	switch why {
	case kvplane.Full:
		p.drop(e, dropFull)
	case kvplane.Closing:
		p.drop(e, dropState)
	default:
		p.drop(e, dropConflict)
	}
	st := s.never(e.Seq, why)
	if e.Seq < s.Low {
		st = s.forgotten(e.Seq)
	}
	s.Low = max(s.Low, e.Seq+1)
	p.emit(Effect{Do: DoStatus, Peer: e.Peer, Seq: e.Seq, ID: e.ID, Status: st})
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

func (p *Producer) cancel(e Event) {
	s := p.session(e)
	p.raise(s, e.Msg.Floor)
	if e.Seq < s.Floor {
		p.drop(e, DropFloor)
		return
	}
	r := s.Regs[e.Seq]
	if r == nil { // it has overtaken its registration, which will find this
		made, reason := p.admit(s, e)
		if reason != 0 {
			p.refuse(s, e, reason)
			return
		}
		p.end(made, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
		return
	}
	if r.given.ID != e.ID {
		p.drop(e, dropConflict)
		return
	}
	switch r.State {
	case regWaiting, regPairing:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
	default:
		p.answer(r)
	}
}

// answer tells D where a registration stands.
func (p *Producer) answer(r *registration) {
	p.emit(Effect{Do: DoStatus, Peer: r.from.peer, Seq: r.Seq, ID: r.given.ID, Status: r.Status})
}

// serve begins to write for a registration whose transfer is held and whose owed consumers are known.
func (p *Producer) serve(r *registration) {
	g := r.given
	if !g.owes(r.from.peer) {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Stranger}, true)
		return
	}
	if why, detail := differ(g.Offer, r.msg); why != 0 {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: why, Detail: detail}, true)
		return
	}
	r.wake = 0
	if r.State == regWaiting {
		r.from.waiting--
	}
	if !r.from.up {
		r.State, r.Status = regPairing, wire.Status{State: wire.Pairing}
		p.answer(r)
		p.emit(Effect{Do: DoPair, Peer: r.from.peer})
		return
	}
	r.State, r.Status = RegWriting, wire.Status{State: wire.Writing}
	r.from.writing++
	p.emit(Effect{Do: DoPost, Peer: r.from.peer, Seq: r.Seq, ID: g.ID, Msg: r.msg, Offer: g.Offer})
	p.letGo(r)
	r.wake = p.Now + p.Times.Resend // D is told, unless there was nothing to write or it is written by then
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
func (p *Producer) letGo(r *registration) {
	if r.msg != nil {
		r.from.Blocks -= transfer.CountBlocks(r.msg.Groups)
		r.msg = nil
	}
}

// end brings a registration to its final status, and the transfer with it if that decides it.
func (p *Producer) end(r *registration, s wire.Status, tell bool) {
	switch r.State {
	case regWaiting:
		r.from.waiting--
	case RegWriting:
		r.from.writing--
	}
	p.letGo(r)
	if s.State == wire.NotBegun {
		s.State = r.from.never(r.Seq, s.Reason).State
	}
	r.State, r.Status = RegEnded, s
	r.again = newBackoff(p.Times)
	r.until = p.Now + p.Times.Lease
	r.wake = p.Now + r.again.next()
	if r.unheard || r.Seq < r.from.Floor {
		r.wake = 0
		delete(r.from.Regs, r.Seq)
	} else {
		p.timers.Set(r)
		if tell {
			p.answer(r)
		}
	}
	g := r.given
	if s.State != wire.Done && g.State == GivenHeld && g.Known && g.owes(r.from.peer) {
		p.lose(g, s.Reason, s.Detail)
		return
	}
	p.settle(g)
}
