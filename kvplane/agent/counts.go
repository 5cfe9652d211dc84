package agent

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/metadata"
)

// account updates the counts with a report.
func (o *owner) account(x *core.Effect) {
	switch x.Report {
	case kvplane.Ready:
		delete(o.awaited, x.ID)
		o.clearStuckAlarm()
		o.received[x.Reason]++
	case kvplane.Failed:
		o.received[x.Reason]++
		if a := o.awaited[x.ID]; a != nil {
			a.failed = o.now()
			o.setStuckAlarm()
		}
	case kvplane.Reusable:
		delete(o.awaited, x.ID)
		o.clearStuckAlarm()
	case kvplane.Sent:
		o.served[x.Reason]++
		o.owe(x.Offer.Peer, -1)
	}
}

// owe counts offers that have not ended, by the engine that they are for.
func (o *owner) owe(inc metadata.Incarnation, n int) {
	if o.owing[inc] += n; o.owing[inc] <= 0 {
		delete(o.owing, inc)
	}
}

// ends names counts by reason; what ended as it should is called "done".
func ends(counts *[kvplane.Reasons]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for i, n := range counts {
		switch {
		case n == 0:
		case i == 0:
			out["done"] = n
		default:
			out[kvplane.Reason(i).String()] = n
		}
	}
	return out
}

// status counts what the owner holds.
func (o *owner) status() Status {
	s := o.stats
	s.Quarantined, s.Stuck, s.Dropped = o.quarantined(), o.stuckWrites(), map[string]int{}
	s.Received, s.Served, s.Failed = ends(&o.received), ends(&o.served), ends(&o.failed)
	s.WriteRequests, s.Offers, s.HeldBlocks = o.producer.Counts()
	s.Expectations, s.PinnedBlocks = o.consumer.Counts()
	s.Writing = len(o.writes)
	s.Peers = len(o.peers)
	for i, n := range o.drops {
		if n > 0 {
			s.Dropped[core.Drop(i).String()] = n
		}
	}
	return s
}
