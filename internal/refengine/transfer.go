package refengine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
)

// ErrTransferKnown is what a leg gets whose transfer id is in use.
var ErrTransferKnown = errors.New("refengine: transfer id is in use")

// transfer is one hand-off as this engine sees it, from the leg's arrival until its blocks are accounted for.
type transfer struct {
	id     kvplane.TransferID
	seq    *Sequence         // whose leg it is
	blocks []int32           // kept after the sequence's end: offered, or not safe yet
	late   *time.Timer       // decode: the leg waited too long for blocks of its own
	rest   [][]kvplane.Range // decode, by rank: what is old in the last blocks
	renew  *time.Timer       // decode: its producer must be told again that the leg waits for blocks
}

// begin notes the transfer of a leg that has arrived.
func (e *Engine) begin(s *Sequence) error {
	id := s.req.Handoff.ID
	if e.transfers[id] != nil {
		return fmt.Errorf("%w: %s", ErrTransferKnown, id)
	}
	t := &transfer{id: id, seq: s}
	if s.req.Leg == DecodeLeg && s.req.Handoff.Valid > 0 {
		t.late = time.AfterFunc(s.req.Handoff.Valid, func() {
			e.post(func() {
				if s.state == waiting {
					e.abort(s, fmt.Errorf("%w: no free blocks in %v", ErrTransfer, s.req.Handoff.Valid), "no free blocks")
				}
			})
		})
	}
	e.transfers[id] = t
	if s.req.Leg == DecodeLeg {
		e.fresh = append(e.fresh, t)
	}
	return nil
}

// renewTime is how often the plane hears that a leg still waits for blocks, if it does not have to be oftener.
const renewTime = time.Minute

// queue tells the plane of the decode legs that got no blocks yet, so that their producers keep what they have for them.
func (e *Engine) queue() {
	for i, t := range e.fresh {
		e.fresh[i] = nil
		if t.seq.state != waiting || e.transfers[t.id] != t {
			continue
		}
		e.plane.orders.Queue = append(e.plane.orders.Queue, sched.Queued{ID: t.id, Peer: t.seq.req.Handoff.Peer})
		pause := renewTime
		if q := e.cfg.Plane.Times.Queue; q > 0 {
			pause = min(pause, q/3)
		}
		t.renew = time.AfterFunc(pause, func() { e.post(func() { e.fresh = append(e.fresh, t) }) })
	}
	e.fresh = e.fresh[:0]
}

// forget drops a transfer whose blocks are accounted for.
func (e *Engine) forget(t *transfer, ending string) {
	for _, timer := range [...]*time.Timer{t.late, t.renew} {
		if timer != nil {
			timer.Stop()
		}
	}
	delete(e.transfers, t.id)
	e.counts.transfers[ending]++
}

// expect registers the blocks of a decode leg with the producer. They stay its own until the plane says more.
func (e *Engine) expect(s *Sequence) {
	t := e.transfers[s.req.Handoff.ID]
	n, size := len(s.req.Tokens), e.cfg.BlockTokens
	own := kvplane.BlockList{First: s.cached, Blocks: slices.Clone(s.table[s.cached/size : (n+size-1)/size])}
	e.plane.orders.Expect = append(e.plane.orders.Expect, kvplane.Expectation{
		ID: t.id, Peer: s.req.Handoff.Peer, Need: [2]int{s.cached, n}, Groups: []kvplane.BlockList{own},
		Ticket: s.req.Handoff.digest, Hash: kvplane.HashTokens(s.req.Tokens), Wait: s.req.Handoff.Valid,
	})
}

// offer makes the blocks of a finished prefill leg available to the consumer. They are held until every rank has sent them.
func (e *Engine) offer(s *Sequence) {
	t := e.transfers[s.req.Handoff.ID]
	n, size := len(s.req.Tokens), e.cfg.BlockTokens
	t.blocks, s.table = s.table, nil
	own := kvplane.BlockList{Blocks: slices.Clone(t.blocks[:(n+size-1)/size])}
	e.plane.orders.Offer = append(e.plane.orders.Offer, kvplane.Offer{
		ID: t.id, Peer: s.req.Handoff.Peer, Tokens: n, Groups: []kvplane.BlockList{own},
		Ticket: s.req.Handoff.digest, Hash: kvplane.HashTokens(s.req.Tokens),
	})
	if f, ok := find(s.faults, WithholdOffer); ok {
		e.plane.muted.withhold(t.id, f.Rank)
	}
}

// abandon tells the plane that a leg which neither offered nor expected anything never will. Other sequences are left alone.
func (e *Engine) abandon(s *Sequence, why string) {
	if t := e.transfers[s.req.Handoff.ID]; t != nil && t.seq == s {
		if s.req.Leg == DecodeLeg { // its producers are told, instead of keeping its blocks for a lease
			e.plane.orders.Queue = append(e.plane.orders.Queue, sched.Queued{ID: t.id, Peer: s.req.Handoff.Peer})
		}
		e.plane.abandon(t.id, why)
		e.forget(t, "abandoned")
	}
}

// giveUp ends a decode leg that waits for its blocks; they come back when every rank is safe.
func (e *Engine) giveUp(s *Sequence, why string) {
	t := e.transfers[s.req.Handoff.ID]
	t.blocks, s.table = s.table, nil
	e.plane.abandon(t.id, why)
}

// cancelTransfer ends the leg of a transfer if it still runs, or what is held for the other leg.
func (e *Engine) cancelTransfer(t *transfer, why string) {
	if t.seq.state != done {
		e.abort(t.seq, fmt.Errorf("%w: cancelled: %s", ErrTransfer, why), why)
		return
	}
	e.plane.abandon(t.id, why)
}

// failed ends the decode leg of a transfer that has failed on some rank; its blocks, if it has any yet, come back when it
// is settled. The blocks of a prefill leg that the consumer left for too long are given up.
func (e *Engine) failed(x *sched.Ended) {
	t := e.transfers[x.ID]
	s := t.seq
	e.cfg.Log.Info("transfer failed", "transfer", t.id.String(), "rank", x.Rank.String(), "reason", x.Reason.String(), "detail", x.Detail)
	if s.req.Leg != DecodeLeg {
		e.plane.abandon(t.id, x.Reason.String())
		return
	}
	queued := s.state == waiting
	e.drop(s)
	s.state = done
	e.counts.finished["error"]++
	if queued {
		e.plane.abandon(t.id, "it has lapsed")
		e.forget(t, "lapsed")
	} else {
		e.giveUp(s, "another rank failed")
	}
	s.out <- Output{Token: -1, Err: fmt.Errorf("%w: %s %s", ErrTransfer, x.Reason, x.Detail)}
}

// rests notes what is old in the last blocks of the transfers that a rank has reported as ready.
func (e *Engine) rests(rank int, reports []kvplane.Report) {
	for i := range reports {
		x := &reports[i]
		if t := e.transfers[x.ID]; t != nil && len(x.Rest) > 0 {
			if t.rest == nil {
				t.rest = make([][]kvplane.Range, len(e.group.ranks))
			}
			t.rest[rank] = x.Rest
		}
	}
}

// settled frees the blocks of a transfer that no rank has to do with any more.
func (e *Engine) settled(x *sched.Ended, ending string) {
	t := e.transfers[x.ID]
	e.pool.release(t.blocks)
	e.forget(t, ending)
}

// release lets a decode leg run: all its prompt's KV is in memory.
func (e *Engine) release(x *sched.Ended) {
	t := e.transfers[x.ID]
	s := t.seq
	e.forget(t, "released")
	e.received(s)
	if err := e.group.sync(); err != nil { // what has landed must be visible before it is read
		e.abort(s, fmt.Errorf("%w: %w", ErrMemory, err), "memory failed")
		return
	}
	for i, rest := range t.rest {
		e.group.ranks[i].cache.clear(rest)
	}
	whole := true
	for _, f := range s.faults {
		if f.Do == FlipBit || f.Do == SwapBlocks || f.Do == ForeignBlock {
			e.group.damage(f, s.table)
			whole = false
		}
	}
	if whole {
		e.remember(s)
	}
}
