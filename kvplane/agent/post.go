package agent

import (
	"errors"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// slowPost is how long planning and posting a write may take before that is logged: the owner does nothing else
// meanwhile.
const slowPost = 200 * time.Millisecond

// mergedPays is how many places one range must stand for to be the cheaper: NIXL takes about 0.2 µs for each range and
// for each place, depending on how many it can merge, 0.02 to 0.002 µs.
const mergedPays = 64

// planAndPost plans and posts one write.
func (w *owner) planAndPost(p *peer, x *core.Effect) {
	began := w.now()
	refuse := func(reason kvplane.Reason, detail string) {
		w.stepProducer(core.Event{Kind: core.EvRefused, Peer: p.id, Seq: x.Seq, ID: x.ID, Reason: reason, Detail: detail})
	}
	var err error
	if p.plan == nil {
		p.plan, err = plan.New(w.self, p.record, w.cfg.Allow)
	}
	if err == nil {
		w.ranges, err = p.plan.Plan(w.ranges[:0], x.Offer.Tokens, x.Msg.Need, x.Offer.Groups, x.Msg.Groups)
	}
	if err != nil {
		var r *plan.Refusal
		if errors.As(err, &r) {
			refuse(reasonOf(r), r.Text())
		} else {
			refuse(kvplane.Unplannable, err.Error())
		}
		return
	}
	if len(w.ranges) == 0 {
		w.stepProducer(core.Event{Kind: core.EvNothing, Peer: p.id, Seq: x.Seq, ID: x.ID, Tokens: x.Offer.Tokens})
		return
	}
	o := &write{peer: p, seq: x.Seq, id: x.ID, tokens: x.Offer.Tokens}
	for _, r := range w.ranges {
		o.bytes += r.Length
	}
	w.lastID++
	err = w.submit(p, x)
	if took := w.now() - began; took > slowPost {
		w.stats.SlowPosts++
		w.log.Warn("kvplane: slow submission", "transfer", x.ID, "peer", p.record.Agent, "blocks", transfer.CountBlocks(x.Msg.Groups),
			"ranges", len(w.ranges), "bytes", o.bytes, "took", took)
	}
	if err != nil {
		w.log.Warn("kvplane: post", "transfer", x.ID, "peer", p.record.Agent, "err", err)
		why := kvplane.SubmitFailed
		if errors.Is(err, transport.ErrBusy) {
			why = kvplane.Busy
		}
		refuse(why, err.Error())
		return
	}
	w.posted(o)
}

// reasonOf returns the reason that a refusal of the plan has in the protocol.
func reasonOf(r *plan.Refusal) kvplane.Reason {
	if r.Unplannable {
		return kvplane.Unplannable
	}
	return kvplane.Short
}

// submit gives the planned write to the transport: as places, where those are prepared and cheaper.
func (w *owner) submit(p *peer, x *core.Effect) error {
	done := w.encode(p, &wire.Message{Kind: wire.KindDone, Seq: x.Seq, Status: wire.Status{State: wire.Done, Tokens: x.Offer.Tokens}})
	t, ok := w.cfg.Transport.(transport.Preparer)
	if ok && p.plan.Copies() <= mergedPays*len(w.ranges) {
		local, remote := p.plan.Places()
		ok = t.Prepare(p.record.Agent, local, remote)
	} else {
		ok = false
	}
	if !ok {
		return w.cfg.Transport.Write(p.record.Agent, w.lastID, w.ranges, done)
	}
	var err error
	w.local, w.remote, err = p.plan.PlanPlaces(w.local[:0], w.remote[:0], x.Offer.Tokens, x.Msg.Need, x.Offer.Groups, x.Msg.Groups)
	if err != nil {
		return err
	}
	return t.WritePrepared(p.record.Agent, w.lastID, w.local, w.remote, done)
}
