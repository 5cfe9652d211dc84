package kvplane

import (
	"context"

	"pdrouter/metadata"
)

// newWriter makes an owner that has done nothing yet. Its host has no asker: the caller gives it one.
func newWriter(ctx context.Context, cfg Config, self metadata.Record, h host) *writer {
	w := &writer{
		cfg: cfg, self: self, log: cfg.Log.With("agent", self.Agent), ctx: ctx, host: h,
		producer: newProducer(cfg.Times), consumer: newConsumer(cfg.Times),
		engines: map[metadata.Incarnation]*engine{}, newest: map[string]uint64{},
		agents: map[string]*peer{}, peers: map[peerID]*peer{},
		vigil:  vigil{suspects: map[metadata.Incarnation][]metadata.Record{}},
		writes: map[uint64]*write{}, sent: map[TransferID]uint64{},
		ring: make(chan struct{}, 1),
	}
	w.apply = w.toCore
	return w
}

// expect, offer and abandon are the engine's words, on the owner's goroutine.
func (w *writer) expect(x *Expectation) {
	w.stepConsumer(event{kind: evExpect, id: x.ID, inc: x.Peer, expect: x})
	if r := w.consumer.receipts[x.ID]; r != nil && r.expect == x && r.unpaired {
		w.seek(x.ID, x.Peer)
	}
}

// queue is the engine's word that it will expect a transfer later.
func (w *writer) queue(id TransferID, from metadata.Incarnation) {
	known := w.consumer.receipts[id] != nil
	w.stepConsumer(event{kind: evQueue, id: id, inc: from})
	if r := w.consumer.receipts[id]; !known && r != nil && r.unpaired {
		w.seek(id, from)
	}
}

// seek tells the consumer whom a transfer hears from, now or when it is known.
func (w *writer) seek(id TransferID, from metadata.Incarnation) {
	w.watch(w.cfg.Times.Lost)
	e, err := w.want(from)
	switch {
	case err != nil:
		w.fail(w.stepConsumer, id, err)
	case e.peers == nil:
		e.expects = append(e.expects, id)
	default:
		w.producers(id, e)
	}
}

func (w *writer) offer(o *Offer) {
	g := w.producer.given[o.ID]
	w.stepProducer(event{kind: evOffer, id: o.ID, inc: o.Peer, offer: o})
	if g != nil && g.state != givenHeld || w.producer.given[o.ID].offer != o {
		return
	}
	w.publish(TransferEvent{Transfer: o.ID.String(), Event: "offered", Peer: o.Peer.ID(), Blocks: blocks(o.Groups)})
	w.watch(w.cfg.Times.Lost)
	e, err := w.want(o.Peer)
	switch {
	case err != nil:
		w.fail(w.stepProducer, o.ID, err)
	case e.peers == nil:
		e.offers = append(e.offers, o.ID)
	default:
		w.consumers(o.ID, e)
	}
}

func (w *writer) abandon(id TransferID, why string) {
	e := event{kind: evAbandon, id: id, detail: why}
	given, expected := w.producer.given[id] != nil, w.consumer.receipts[id] != nil
	if given || !expected && w.self.Role != metadata.Decode {
		w.stepProducer(e)
	}
	if expected || !given && w.self.Role != metadata.Prefill {
		w.stepConsumer(e)
	}
}

// report tells the engine and the subscribers.
func (w *writer) report(x *effect) {
	r := Report{ID: x.id, Rank: w.self.Rank, Kind: x.report, Reason: x.reason, Detail: x.detail, Tokens: x.tokens, K: x.k, N: x.n}
	if x.expect != nil {
		r.Groups = x.expect.Groups
	} else if x.offer != nil {
		r.Groups = x.offer.Groups
	}
	r.Blocks = blocks(r.Groups)
	if x.report == Sent {
		r.Bytes = w.sent[x.id]
		delete(w.sent, x.id)
	}
	ev := TransferEvent{
		Transfer: x.id.String(), Event: x.report.String(), K: x.k, N: x.n, Blocks: r.Blocks, Bytes: r.Bytes, Reason: x.reason.String(),
	}
	if x.report == Sent && x.reason == LeaseOver {
		expired := ev
		expired.Event = "expired"
		w.publish(expired)
	}
	w.publish(ev)
	if w.cfg.Report != nil {
		w.cfg.Report(r)
	} else {
		w.keepReport(r)
	}
}

func (w *writer) publish(e TransferEvent) {
	e.Engine, e.Generation, e.Rank = w.self.Engine, w.self.Generation, w.self.Rank
	switch {
	case w.cfg.Events != nil:
		w.cfg.Events.Publish(e)
	case w.cfg.Report == nil:
		w.keepEvent(e)
	}
}

func blocks(groups []BlockList) int {
	n := 0
	for _, g := range groups {
		n += len(g.Blocks)
	}
	return n
}

// status counts the books.
func (w *writer) status() Status {
	s := w.stats
	s.Quarantined, s.Dropped = map[string]int{}, map[string]int{}
	for _, in := range w.producer.sessions {
		s.Registrations += len(in.regs)
	}
	for _, g := range w.producer.given {
		if g.state == givenHeld || g.state == givenDraining {
			s.Offers++
			s.HeldBlocks += blocks(g.offer.Groups)
		}
	}
	for _, r := range w.consumer.receipts {
		if r.expect == nil || r.retired {
			continue
		}
		s.Expectations++
		switch r.state {
		case receiptStop:
			s.Quarantined[r.inc.ID()] += blocks(r.expect.Groups)
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
