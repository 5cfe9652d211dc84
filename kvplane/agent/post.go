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

// mergeFactor is how many descriptors one range must replace to be the cheaper: NIXL takes about 0.2 µs for each range and
// 0.02 to 0.002 µs for each descriptor index, depending on how many it can merge.
const mergeFactor = 64

// planAndPost plans and posts one write.
func (o *owner) planAndPost(p *peer, x *core.Effect) {
	began := o.now()
	refuse := func(reason kvplane.Reason, detail string) {
		o.stepProducer(core.Event{Kind: core.EvRefused, Peer: p.id, Seq: x.Seq, ID: x.ID, Reason: reason, Detail: detail})
	}
	var err error
	if p.plan == nil {
		p.plan, err = plan.New(o.self, p.record, o.cfg.Allow)
	}
	if err == nil {
		o.ranges, err = p.plan.Plan(o.ranges[:0], x.Offer.Tokens, x.Msg.Need, x.Offer.Groups, x.Msg.Groups)
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
	if len(o.ranges) == 0 {
		o.stepProducer(core.Event{Kind: core.EvNothing, Peer: p.id, Seq: x.Seq, ID: x.ID, Tokens: x.Offer.Tokens})
		return
	}
	out := &write{peer: p, seq: x.Seq, id: x.ID, tokens: x.Offer.Tokens}
	for _, r := range o.ranges {
		out.bytes += r.Length
	}
	o.lastID++
	err = o.submit(p, x)
	if took := o.now() - began; took > slowPost {
		o.stats.SlowPosts++
		o.log.Warn("kvplane: slow submission", "transfer", x.ID, "peer", p.record.Agent, "blocks", transfer.CountBlocks(x.Msg.Groups),
			"ranges", len(o.ranges), "bytes", out.bytes, "took_seconds", took.Seconds())
	}
	if err != nil {
		o.log.Warn("kvplane: post", "transfer", x.ID, "peer", p.record.Agent, "err", err)
		why := kvplane.SubmitFailed
		if errors.Is(err, transport.ErrBusy) {
			why = kvplane.Busy
		}
		refuse(why, err.Error())
		return
	}
	o.posted(out)
}

// reasonOf returns the reason that a refusal of the plan has in the protocol.
func reasonOf(r *plan.Refusal) kvplane.Reason {
	if r.Unplannable {
		return kvplane.Unplannable
	}
	return kvplane.Short
}

// submit gives the planned write to the transport: as descriptor indices, where those are prepared and cheaper.
func (o *owner) submit(p *peer, x *core.Effect) error {
	done := o.encode(p, &wire.Message{Kind: wire.KindDone, Seq: x.Seq, Status: wire.Status{State: wire.Done, Tokens: x.Offer.Tokens}})
	t, ok := o.cfg.Transport.(transport.Preparer)
	if ok && p.plan.Copies() <= mergeFactor*len(o.ranges) {
		local, remote := p.plan.Descriptors()
		ok = t.Prepare(p.record.Agent, local, remote)
	} else {
		ok = false
	}
	if !ok {
		return o.cfg.Transport.Write(p.record.Agent, o.lastID, o.ranges, done)
	}
	var err error
	o.local, o.remote, err = p.plan.PlanDescriptors(o.local[:0], o.remote[:0], x.Offer.Tokens, x.Msg.Need, x.Offer.Groups, x.Msg.Groups)
	if err != nil {
		return err
	}
	return t.WritePrepared(p.record.Agent, o.lastID, o.local, o.remote, done)
}

// posted notes that a write is in progress from now on.
func (o *owner) posted(x *write) {
	x.at = o.now()
	o.writes[o.lastID] = x
	x.peer.writes++
	o.active = x.at
	o.moving = max(o.moving, x.at) + time.Duration(x.bytes)*slowest
	o.setStuckAlarm()
}

// unposted notes that a write has ended.
func (o *owner) unposted(id uint64) {
	o.writes[id].peer.writes--
	delete(o.writes, id)
	o.clearStuckAlarm()
}
