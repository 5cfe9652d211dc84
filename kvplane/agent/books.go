package agent

import (
	"context"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// newWriter makes an owner that has done nothing yet. Its host has no asker: the caller gives it one.
func newWriter(ctx context.Context, cfg Config, self metadata.Record, h host) *writer {
	w := &writer{
		cfg: cfg, self: self, log: cfg.Log.With("agent", self.Agent), ctx: ctx, host: h,
		room: transport.MaxPeers, newest: map[string]generation{}, owing: map[metadata.Incarnation]int{}, awaited: map[kvplane.TransferID]*pending{},
		remnants: map[kvplane.TransferID]*remnant{}, ring: make(chan struct{}, 1),
	}
	w.reset()
	w.apply = w.toCore
	return w
}

// reset forgets all peers and what was between them and this agent.
func (w *writer) reset() {
	before := w.producer
	w.producer, w.consumer = newProducer(w.cfg.Times), newConsumer(w.cfg.Times)
	if before != nil {
		w.producer.bounds = before.bounds
	}
	w.timers, w.vigil, w.stuck = alarm.Timers{}, vigil{suspects: map[metadata.Incarnation][]metadata.Record{}}, stuck{}
	w.engines, w.agents, w.peers = map[metadata.Incarnation]*engine{}, map[string]*peer{}, map[peerID]*peer{}
	w.collected.shifted = true
	w.writes, w.sent, w.tell, w.parked, w.spoke = map[uint64]*write{}, map[kvplane.TransferID]uint64{}, nil, 0, 0
}

// expect, offer and abandon are the engine's words, on the owner's goroutine.
func (w *writer) expect(x *kvplane.Expectation) {
	if w.remnants[x.ID] != nil {
		w.drops[dropRepeat]++
		return
	}
	w.stepConsumer(event{kind: evExpect, id: x.ID, inc: x.Peer, expect: x})
	r := w.consumer.receipts[x.ID]
	if r == nil || r.expect != x { // it was not taken, or has ended
		return
	}
	if r.state == receiptPairing || r.state == receiptCollect {
		w.awaited[x.ID] = &pending{inc: x.Peer, blocks: blocks(x.Groups)}
	}
	if r.unpaired {
		w.seek(x.ID, x.Peer)
	}
}

// queue is the engine's word that it will expect a transfer later.
func (w *writer) queue(id kvplane.TransferID, from metadata.Incarnation) {
	known := w.consumer.receipts[id] != nil
	w.stepConsumer(event{kind: evQueue, id: id, inc: from})
	if r := w.consumer.receipts[id]; !known && r != nil && r.unpaired {
		w.seek(id, from)
	}
}

// seek tells the consumer whom a transfer hears from, now or when it is known.
func (w *writer) seek(id kvplane.TransferID, from metadata.Incarnation) {
	w.watch(w.cfg.Times.Lost)
	e, err := w.want(from)
	switch {
	case err != nil:
		w.fail(w.stepConsumer, id, err)
	case e.peers == nil || w.unsure(from, e):
		e.expects = append(e.expects, id)
		w.collected.shifted = true
	default:
		w.producers(id, e)
	}
}

func (w *writer) offer(o *kvplane.Offer) {
	w.owe(o.Peer, 1)
	w.stepProducer(event{kind: evOffer, id: o.ID, inc: o.Peer, offer: o})
	g := w.producer.given[o.ID]
	if g == nil || g.offer != o {
		w.owe(o.Peer, -1) // it was not taken
		return
	}
	if g.state != givenHeld { // it had been given up before, and has ended
		return
	}
	w.watch(w.cfg.Times.Lost)
	e, err := w.want(o.Peer)
	switch {
	case err != nil:
		w.fail(w.stepProducer, o.ID, err)
	case e.peers == nil || w.unsure(o.Peer, e):
		e.offers = append(e.offers, o.ID)
		w.collected.shifted = true
	default:
		w.consumers(o.ID, e)
	}
}

func (w *writer) abandon(id kvplane.TransferID, why string) {
	e := event{kind: evAbandon, id: id, detail: why}
	given, expected := w.producer.given[id] != nil, w.consumer.receipts[id] != nil
	if given || !expected && w.self.Role != metadata.Decode {
		w.stepProducer(e)
	}
	if expected || !given && w.self.Role != metadata.Prefill {
		w.stepConsumer(e)
	}
}

// report tells the engine.
func (w *writer) report(x *effect) {
	w.account(x)
	r := kvplane.Report{ID: x.id, Rank: w.self.Rank, Kind: x.report, Reason: x.reason, Detail: x.detail, Tokens: x.tokens, K: x.k, N: x.n}
	switch {
	case x.expect != nil:
		r.Order, r.Groups = kvplane.ExpectOrder, x.expect.Groups
	case x.offer != nil:
		r.Order, r.Groups = kvplane.OfferOrder, x.offer.Groups
	default:
		r.Order = kvplane.QueueOrder
	}
	r.Blocks = blocks(r.Groups)
	if x.report == kvplane.Ready {
		r.Rest = w.tail(x)
	}
	if x.report == kvplane.Sent {
		r.Bytes = w.sent[x.id]
		delete(w.sent, x.id)
	}
	w.told = true
	if w.cfg.Report != nil {
		w.cfg.Report(r)
	} else {
		w.keepReport(r)
	}
}

func blocks(groups []kvplane.BlockList) int {
	n := 0
	for _, g := range groups {
		n += len(g.Blocks)
	}
	return n
}

// status counts the books.
func (w *writer) status() Status {
	s := w.stats
	s.Quarantined, s.Stuck, s.Dropped = w.quarantined(), w.stuckWrites(), map[string]int{}
	s.Received, s.Served, s.Failed = ends(&w.received), ends(&w.served), ends(&w.failed)
	for _, in := range w.producer.sessions {
		s.Registrations += len(in.regs)
	}
	for _, g := range w.producer.given {
		if g.state == givenHeld || g.state == givenDraining {
			s.Offers++
			s.HeldBlocks += blocks(g.offer.Groups)
		}
	}
	for _, x := range w.remnants {
		s.Expectations++
		s.PinnedBlocks += blocks(x.last.expect.Groups)
	}
	for _, r := range w.consumer.receipts {
		if r.expect == nil || r.retired {
			continue
		}
		s.Expectations++
		switch r.state {
		case receiptStop:
			s.PinnedBlocks += blocks(r.expect.Groups)
		case receiptPairing, receiptCollect:
			s.PinnedBlocks += blocks(r.expect.Groups)
		}
	}
	s.Writing = len(w.writes)
	s.Peers = len(w.peers)
	for i, n := range w.drops {
		if n > 0 {
			s.Dropped[drop(i).String()] = n
		}
	}
	return s
}
