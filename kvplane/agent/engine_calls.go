package agent

import (
	"context"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// newOwner makes an owner that has done nothing yet. Its host has no asker: the caller gives it one.
func newOwner(ctx context.Context, cfg Config, self metadata.Record, h host) *owner {
	w := &owner{
		cfg: cfg, self: self, log: cfg.Log.With("agent", self.Agent), ctx: ctx, host: h,
		room: transport.MaxPeers, newest: map[string]generation{}, owing: map[metadata.Incarnation]int{}, awaited: map[kvplane.TransferID]*pending{},
		quarantine: map[kvplane.TransferID]*quarantinedTransfer{}, wakeup: make(chan struct{}, 1),
	}
	w.reset()
	w.apply = w.toCore
	return w
}

// reset forgets all peers and what was between them and this agent.
func (w *owner) reset() {
	before := w.producer
	w.producer, w.consumer = core.NewProducer(w.cfg.Times), core.NewConsumer(w.cfg.Times)
	if before != nil {
		w.producer.Bounds = before.Bounds
	}
	w.timers, w.liveness, w.stuck = alarm.Timers{}, livenessMonitor{unprovenDead: map[metadata.Incarnation][]metadata.Record{}}, stuck{}
	w.engines, w.agents, w.peers = map[metadata.Incarnation]*engine{}, map[string]*peer{}, map[core.PeerID]*peer{}
	w.collected.shifted = true
	w.writes, w.sent, w.acksDue, w.held, w.sentAt = map[uint64]*write{}, map[kvplane.TransferID]uint64{}, nil, 0, 0
}

// expect, offer and abandon carry out the engine's calls, on the owner's goroutine.
func (w *owner) expect(x *kvplane.Expectation) {
	if w.quarantine[x.ID] != nil {
		w.drops[core.DropRepeat]++
		return
	}
	w.stepConsumer(core.Event{Kind: core.EvExpect, ID: x.ID, Inc: x.Peer, Expect: x})
	if !w.consumer.Accepted(x) {
		return
	}
	if w.consumer.Awaits(x.ID) {
		w.awaited[x.ID] = &pending{inc: x.Peer, blocks: transfer.CountBlocks(x.Groups)}
	}
	if from, ok := w.consumer.UnpairedWith(x.ID); ok {
		w.sendProducers(x.ID, from)
	}
}

// queue carries out Agent.Queue.
func (w *owner) queue(id kvplane.TransferID, from metadata.Incarnation) {
	known := w.consumer.Knows(id)
	w.stepConsumer(core.Event{Kind: core.EvQueue, ID: id, Inc: from})
	if _, ok := w.consumer.UnpairedWith(id); ok && !known {
		w.sendProducers(id, from)
	}
}

// sendProducers gives the consumer the list of a transfer's producers (EvProducers), now or when their records are here.
func (w *owner) sendProducers(id kvplane.TransferID, from metadata.Incarnation) {
	w.watch(w.cfg.Times.Lost)
	e, err := w.resolve(from)
	switch {
	case err != nil:
		w.fail(w.stepConsumer, id, err)
	case e.peers == nil || w.refreshIfStale(from, e):
		e.expects = append(e.expects, id)
		w.collected.shifted = true
	default:
		w.producers(id, e)
	}
}

func (w *owner) offer(o *kvplane.Offer) {
	w.owe(o.Peer, 1)
	w.stepProducer(core.Event{Kind: core.EvOffer, ID: o.ID, Inc: o.Peer, Offer: o})
	taken, held := w.producer.Accepted(o)
	if !taken {
		w.owe(o.Peer, -1)
	}
	if !held {
		return
	}
	w.watch(w.cfg.Times.Lost)
	e, err := w.resolve(o.Peer)
	switch {
	case err != nil:
		w.fail(w.stepProducer, o.ID, err)
	case e.peers == nil || w.refreshIfStale(o.Peer, e):
		e.offers = append(e.offers, o.ID)
		w.collected.shifted = true
	default:
		w.consumers(o.ID, e)
	}
}

func (w *owner) abandon(id kvplane.TransferID, why string) {
	e := core.Event{Kind: core.EvAbandon, ID: id, Detail: why}
	given, expected := w.producer.Knows(id), w.consumer.Knows(id)
	if given || !expected && w.self.Role != metadata.Decode {
		w.stepProducer(e)
	}
	if expected || !given && w.self.Role != metadata.Prefill {
		w.stepConsumer(e)
	}
}

// report hands a Report to the engine, or keeps it for Collect.
func (w *owner) report(x *core.Effect) {
	w.account(x)
	r := kvplane.Report{ID: x.ID, Rank: w.self.Rank, Kind: x.Report, Reason: x.Reason, Detail: x.Detail, Tokens: x.Tokens, K: x.K, N: x.N}
	switch {
	case x.Expect != nil:
		r.Order, r.Groups = kvplane.ExpectOrder, x.Expect.Groups
	case x.Offer != nil:
		r.Order, r.Groups = kvplane.OfferOrder, x.Offer.Groups
	default:
		r.Order = kvplane.QueueOrder
	}
	r.Blocks = transfer.CountBlocks(r.Groups)
	if x.Report == kvplane.Ready {
		r.Rest = w.tail(x)
	}
	if x.Report == kvplane.Sent {
		r.Bytes = w.sent[x.ID]
		delete(w.sent, x.ID)
	}
	w.reported = true
	if w.cfg.Report != nil {
		w.cfg.Report(r)
	} else {
		w.keepReport(r)
	}
}

// status counts what the owner holds.
func (w *owner) status() Status {
	s := w.stats
	s.Quarantined, s.Stuck, s.Dropped = w.quarantined(), w.stuckWrites(), map[string]int{}
	s.Received, s.Served, s.Failed = ends(&w.received), ends(&w.served), ends(&w.failed)
	s.Registrations, s.Offers, s.HeldBlocks = w.producer.Counts()
	s.Expectations, s.PinnedBlocks = w.consumer.Counts()
	for _, x := range w.quarantine {
		s.Expectations++
		s.PinnedBlocks += transfer.CountBlocks(x.last.Expect.Groups)
	}
	s.Writing = len(w.writes)
	s.Peers = len(w.peers)
	for i, n := range w.drops {
		if n > 0 {
			s.Dropped[core.Drop(i).String()] = n
		}
	}
	return s
}
