package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Quarantine is what one peer may still write here: blocks of failed transfers.
type Quarantine struct {
	Blocks  int     `json:"blocks"`
	Near    int     `json:"near"`    // of these: what no Rebuild frees, because the peer may copy without this transport: on this host, between GPUs, or through a transport that could not be closed
	Seconds float64 `json:"seconds"` // since the first of them failed
}

// pending is an expectation that is neither Ready nor Reusable.
type pending struct {
	inc    metadata.Incarnation
	blocks int
	failed time.Duration // when it failed; 0 is not
}

// quarantined sums up, by engine id, what may still be written here for failed transfers.
func (w *owner) quarantined() map[string]Quarantine {
	out := map[string]Quarantine{}
	_, fences := w.cfg.Transport.(transport.Fencer)
	for id, a := range w.awaited {
		if a.failed == 0 {
			continue
		}
		q := out[a.inc.ID()]
		q.Blocks += a.blocks
		if w.quarantine[id] != nil || !fences && w.anyMayCopyDirectly(w.recordsOf(a.inc)) {
			q.Near += a.blocks
		}
		q.Seconds = max(q.Seconds, (w.now() - a.failed).Seconds())
		out[a.inc.ID()] = q
	}
	return out
}

// account updates the counts with a report.
func (w *owner) account(x *core.Effect) {
	switch x.Report {
	case kvplane.Ready:
		delete(w.awaited, x.ID)
		w.received[x.Reason]++
	case kvplane.Failed:
		w.received[x.Reason]++
		if a := w.awaited[x.ID]; a != nil {
			a.failed = w.now()
		}
	case kvplane.Reusable:
		delete(w.awaited, x.ID)
	case kvplane.Sent:
		w.served[x.Reason]++
		w.owe(x.Offer.Peer, -1)
	}
}

// owe counts the offers that engines have not come for yet.
func (w *owner) owe(inc metadata.Incarnation, n int) {
	if w.owing[inc] += n; w.owing[inc] <= 0 {
		delete(w.owing, inc)
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
