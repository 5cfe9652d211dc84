package agent

import (
	"time"

	"pdrouter/metadata"
)

// Quarantine is what one peer may still write here: blocks of failed transfers.
type Quarantine struct {
	Blocks  int     `json:"blocks"`
	Seconds float64 `json:"seconds"` // since the first of them failed
}

// awaitedTransfer is an expectation that is neither Ready nor Reusable.
type awaitedTransfer struct {
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
