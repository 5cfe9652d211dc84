package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// expect, offer and abandon carry out the engine's calls, on the owner's goroutine.
func (o *owner) expect(x *kvplane.Expectation) {
	o.stepConsumer(core.Event{Kind: core.EvExpect, ID: x.ID, Inc: x.Peer, Expect: x})
	if !o.consumer.Accepted(x) {
		return
	}
	if o.consumer.Awaits(x.ID) {
		o.awaited[x.ID] = &awaitedTransfer{inc: x.Peer, blocks: transfer.CountBlocks(x.Groups)}
	}
	if from, ok := o.consumer.WithoutProducers(x.ID); ok {
		o.sendProducers(x.ID, from)
	}
}

// queue carries out Agent.Queue.
func (o *owner) queue(id kvplane.TransferID, from metadata.Incarnation) {
	known := o.consumer.Knows(id)
	o.stepConsumer(core.Event{Kind: core.EvQueue, ID: id, Inc: from})
	if _, ok := o.consumer.WithoutProducers(id); ok && !known {
		o.sendProducers(id, from)
	}
}

// sendProducers gives the consumer the list of a transfer's producers (EvProducers), now or when their records are here.
func (o *owner) sendProducers(id kvplane.TransferID, from metadata.Incarnation) {
	o.checkLivenessWithin(o.cfg.Times.Lost)
	e, err := o.resolve(from)
	switch {
	case err != nil:
		o.fail(o.stepConsumer, id, err)
	case e.peers == nil:
		e.expects = append(e.expects, id)
		o.collected.pendingChanged = true
	default:
		o.producers(id, e)
	}
}

func (o *owner) offer(x *kvplane.Offer) {
	o.owe(x.Peer, 1)
	o.stepProducer(core.Event{Kind: core.EvOffer, ID: x.ID, Inc: x.Peer, Offer: x})
	taken, held := o.producer.Accepted(x)
	if !taken {
		o.owe(x.Peer, -1)
	}
	if !held {
		return
	}
	o.checkLivenessWithin(o.cfg.Times.Lost)
	e, err := o.resolve(x.Peer)
	switch {
	case err != nil:
		o.fail(o.stepProducer, x.ID, err)
	case e.peers == nil:
		e.offers = append(e.offers, x.ID)
		o.collected.pendingChanged = true
	default:
		o.consumers(x.ID, e)
	}
}

func (o *owner) abandon(id kvplane.TransferID, why string) {
	e := core.Event{Kind: core.EvAbandon, ID: id, Detail: why}
	given, expected := o.producer.Knows(id), o.consumer.Knows(id)
	if given || !expected && o.self.Role != metadata.Decode {
		o.stepProducer(e)
	}
	if expected || !given && o.self.Role != metadata.Prefill {
		o.stepConsumer(e)
	}
}

// report hands a Report to the engine, or keeps it for Collect.
func (o *owner) report(x *core.Effect) {
	o.account(x)
	r := kvplane.Report{ID: x.ID, Rank: o.self.Rank, Kind: x.Report, Reason: x.Reason, Detail: x.Detail, Tokens: x.Tokens, K: x.K, N: x.N}
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
		r.Rest = o.tail(x)
	}
	if x.Report == kvplane.Sent {
		r.Bytes = o.sent[x.ID]
		delete(o.sent, x.ID)
	}
	o.reported = true
	if o.cfg.Report != nil {
		o.cfg.Report(r)
	} else {
		o.keepReport(r)
	}
}
