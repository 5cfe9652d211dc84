package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/metadata"
)

// Quarantine is what one peer may still write here: blocks of failed transfers.
type Quarantine struct {
	Blocks  int     `json:"blocks"`
	Seconds float64 `json:"seconds"` // since the first of them failed
}

// pending is an expectation that is neither Ready nor Reusable.
type pending struct {
	inc    metadata.Incarnation
	blocks int
	failed time.Duration // when it failed; 0 is not
	logged bool          // that it stays in quarantine
}

// quarantined sums up, by engine id, what may still be written here for failed transfers.
func (o *owner) quarantined() map[string]Quarantine {
	out := map[string]Quarantine{}
	for _, a := range o.awaited {
		if a.failed == 0 {
			continue
		}
		q := out[a.inc.ID()]
		q.Blocks += a.blocks
		q.Seconds = max(q.Seconds, (o.now() - a.failed).Seconds())
		out[a.inc.ID()] = q
	}
	return out
}

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
