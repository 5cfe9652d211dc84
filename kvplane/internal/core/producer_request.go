package core

import (
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/wire"
)

// raiseLowWater takes the low-water mark of a message: D has settled everything below it.
func (p *Producer) raiseLowWater(s *consumerSession, lowWater uint64) {
	if lowWater <= s.LowWater {
		return
	}
	if lowWater-s.LowWater <= uint64(p.Bounds.Requests) { // the rule: it rises by a few
		for seq := s.LowWater; seq < lowWater; seq++ {
			if r := s.Requests[seq]; r != nil {
				p.forget(s, r)
			}
		}
	} else {
		for _, r := range s.Order.All {
			if r.in() && r.Seq < lowWater {
				p.forget(s, r)
			}
		}
	}
	s.LowWater = lowWater
}

// ack takes the news of what D has settled: everything below the low-water mark, and single numbers above it. Of these the
// final status is kept, for a delayed write request, but not sent again.
func (p *Producer) ack(e Event) {
	s := p.session(e)
	p.raiseLowWater(s, e.Msg.LowWater)
	for _, seq := range e.Msg.Settled {
		if r := s.Requests[seq]; r != nil && r.State == RequestEnded {
			r.wake = 0
		}
	}
}

// forget removes a write request that D no longer asks about. A write in progress runs to its end.
func (p *Producer) forget(s *consumerSession, r *writeRequest) {
	if r.State == RequestWriting {
		return
	}
	delete(s.Requests, r.Seq)
	r.wake, r.noStatus = 0, true
	if r.State != RequestEnded {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, false)
	}
}

func (p *Producer) writeRequest(e Event) {
	s := p.session(e)
	p.raiseLowWater(s, e.Msg.LowWater)
	if e.Seq < s.LowWater {
		p.drop(e, DropSettled)
		return
	}
	if r := s.Requests[e.Seq]; r != nil {
		switch {
		case r.outgoing.ID != e.ID || r.asked && r.digest != e.Msg.Digest:
			p.drop(e, dropConflict)
		default:
			p.drop(e, DropRepeat)
			p.answer(r)
		}
		return
	}
	r, reason := p.addRequest(s, e)
	if reason != 0 {
		p.refuse(s, e, reason)
		return
	}
	r.msg, r.digest, r.asked = e.Msg, e.Msg.Digest, true
	r.State, r.Status = requestWaiting, wire.Status{State: wire.Waiting}
	s.waiting++
	s.Blocks += transfer.CountBlocks(e.Msg.Groups)
	g := r.outgoing
	switch {
	case g.State == OutgoingTombstone || g.State == outgoingDraining:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: g.lateReason(), Detail: g.detail}, true)
	case g.State == OutgoingHeld && g.OwedKnown:
		p.serve(r)
	default:
		r.wake = p.Now + min(max(e.Msg.Wait, p.Times.Resend), kvplane.MaxWait)
		p.timers.Set(r)
		p.answer(r)
	}
}

// addRequest makes a write request under the event's number, unless a bound or an earlier one forbids it.
func (p *Producer) addRequest(s *consumerSession, e Event) (*writeRequest, kvplane.Reason) {
	switch {
	case p.closing:
		return nil, kvplane.Closing
	case e.Seq < s.NeverStartBelow:
		return nil, kvplane.Spent
	case len(s.Requests) >= p.Bounds.Requests,
		e.Budget > 0 && s.Blocks+transfer.CountBlocks(e.Msg.Groups) > e.Budget:
		return nil, kvplane.Full
	}
	g := p.Outgoing[e.ID]
	if s.waiting >= p.Bounds.Early && e.Kind == EvWriteRequest && (g == nil || g.State == OutgoingEarly) {
		return nil, kvplane.Full
	}
	if g == nil {
		if g = p.early(e.ID); g == nil {
			return nil, kvplane.Full
		}
	}
	for _, other := range g.Requests {
		if other.from == s && g.State >= outgoingDraining {
			return nil, kvplane.Spent
		}
		if other.from == s {
			return nil, kvplane.Conflict
		}
	}
	r := &writeRequest{Seq: e.Seq, from: s, outgoing: g}
	s.Requests[e.Seq] = r
	s.Order.add(r, (*writeRequest).in)
	g.Requests = append(g.Requests, r)
	if g.State == OutgoingEarly {
		g.wake = max(g.wake, p.Now+min(e.Msg.Wait, kvplane.MaxWait)+p.Times.Wait)
		p.timers.Set(g)
	}
	return r, 0
}

// refuse answers in a final state without a place to keep it. That the number is not begun later, when there is room,
// is remembered in one number of the session. So are the numbers below it that are still on their way: each is refused
// when it comes, and told so.
func (p *Producer) refuse(s *consumerSession, e Event, why kvplane.Reason) {
	switch why {
	case kvplane.Full:
		p.drop(e, dropFull)
	case kvplane.Closing:
		p.drop(e, dropState)
	default:
		p.drop(e, dropConflict)
	}
	st := s.neverBegun(e.Seq, why)
	if e.Seq < s.NeverStartBelow {
		st = s.statusOfForgotten(e.Seq)
	}
	s.NeverStartBelow = max(s.NeverStartBelow, e.Seq+1)
	p.emit(Effect{Do: DoStatus, Peer: e.Peer, Seq: e.Seq, ID: e.ID, Status: st})
}

// statusOfForgotten is the status of an unknown number that is never begun. If it may have been written, D must not take it
// for one that never was.
func (s *consumerSession) statusOfForgotten(seq uint64) wire.Status {
	if seq < s.maybeWrittenBelow {
		return wire.Status{State: wire.Failed, Reason: kvplane.Spent}
	}
	return s.neverBegun(seq, kvplane.Spent)
}

// neverBegun is the status of a number that is not begun here. If it may have been written before the session was forgotten,
// D must flush, so the status is failed.
func (s *consumerSession) neverBegun(seq uint64, why kvplane.Reason) wire.Status {
	if seq < s.pastWrittenBelow {
		return wire.Status{State: wire.Failed, Reason: why}
	}
	return wire.Status{State: wire.NotBegun, Reason: why}
}

func (p *Producer) cancel(e Event) {
	s := p.session(e)
	p.raiseLowWater(s, e.Msg.LowWater)
	if e.Seq < s.LowWater {
		p.drop(e, DropSettled)
		return
	}
	r := s.Requests[e.Seq]
	if r == nil { // it has overtaken its write request, which will find this
		made, reason := p.addRequest(s, e)
		if reason != 0 {
			p.refuse(s, e, reason)
			return
		}
		p.end(made, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
		return
	}
	if r.outgoing.ID != e.ID {
		p.drop(e, dropConflict)
		return
	}
	switch r.State {
	case requestWaiting, requestPairing:
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}, true)
	default: // writing: it runs to its end, which answers; ended: its status is said again
		p.answer(r)
	}
}

// answer tells D where a write request stands.
func (p *Producer) answer(r *writeRequest) {
	p.emit(Effect{Do: DoStatus, Peer: r.from.peer, Seq: r.Seq, ID: r.outgoing.ID, Status: r.Status})
}

// serve begins to write for a write request whose transfer is held and whose owed consumers are known.
func (p *Producer) serve(r *writeRequest) {
	g := r.outgoing
	if !g.owes(r.from.peer) {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: kvplane.Stranger}, true)
		return
	}
	if why, detail := differ(g.Offer, r.msg); why != 0 {
		p.end(r, wire.Status{State: wire.NotBegun, Reason: why, Detail: detail}, true)
		return
	}
	r.wake = 0
	if r.State == requestWaiting {
		r.from.waiting--
	}
	if !r.from.up {
		r.State, r.Status = requestPairing, wire.Status{State: wire.Pairing}
		p.answer(r)
		p.emit(Effect{Do: DoPair, Peer: r.from.peer})
		return
	}
	r.State, r.Status = RequestWriting, wire.Status{State: wire.Writing}
	r.from.writing++
	p.emit(Effect{Do: DoPost, Peer: r.from.peer, Seq: r.Seq, ID: g.ID, Msg: r.msg, Offer: g.Offer})
	p.dropLists(r)
	r.wake = p.Now + p.Times.Resend // STATUS writing, unless it has ended by then
	p.timers.Set(r)
}

// differ says why an offer and a write request cannot belong together, where both sides know enough to tell.
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

// dropLists drops a write request's lists: it is posted or has ended, and D may have given its blocks away before P hears
// how the write has ended.
func (p *Producer) dropLists(r *writeRequest) {
	if r.msg != nil {
		r.from.Blocks -= transfer.CountBlocks(r.msg.Groups)
		r.msg = nil
	}
}

// end brings a write request to its final status, and the transfer with it if that decides it.
func (p *Producer) end(r *writeRequest, s wire.Status, tell bool) {
	switch r.State {
	case requestWaiting:
		r.from.waiting--
	case RequestWriting:
		r.from.writing--
	}
	p.dropLists(r)
	if s.State == wire.NotBegun {
		s.State = r.from.neverBegun(r.Seq, s.Reason).State
	}
	r.State, r.Status = RequestEnded, s
	r.again = newBackoff(p.Times)
	r.until = p.Now + p.Times.Lease
	r.wake = p.Now + r.again.next()
	if r.noStatus || r.Seq < r.from.LowWater {
		r.wake = 0
		delete(r.from.Requests, r.Seq)
	} else {
		p.timers.Set(r)
		if tell {
			p.answer(r)
		}
	}
	g := r.outgoing
	if s.State != wire.Done && g.State == OutgoingHeld && g.OwedKnown && g.owes(r.from.peer) {
		p.failTransfer(g, s.Reason, s.Detail)
		return
	}
	p.settle(g)
}
