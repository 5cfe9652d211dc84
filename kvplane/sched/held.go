package sched

import (
	"time"

	"pdrouter/metadata"
)

// Held is what waits for one rank: transfers that have failed, or that the engine gave up, whose blocks stay pinned until
// the rank says that nothing lands in them and that it reads them no more.
type Held struct {
	Transfers int     `json:"transfers"`
	Blocks    int     `json:"blocks"`
	Seconds   float64 `json:"seconds"` // since the first of them failed
	Reason    string  `json:"reason"`  // why that one did
}

// Held returns what is held for each rank that has not let go of all, at the time now.
func (a *Aggregator) Held(now time.Duration) map[metadata.Rank]Held {
	out := map[metadata.Rank]Held{}
	for _, t := range a.transfers {
		if !t.failed || t.phase < phaseExpected {
			continue
		}
		blocks := 0
		for _, g := range t.groups {
			blocks += len(g.Blocks)
		}
		for i, rank := range t.ranks {
			if s := t.states[i]; s != rankOpen && s != rankFailed {
				continue
			}
			h := out[rank]
			h.Transfers++
			h.Blocks += blocks
			if s := (now - t.failing).Seconds(); h.Reason == "" || s > h.Seconds {
				h.Seconds, h.Reason = s, t.ended.Reason.String()
			}
			out[rank] = h
		}
	}
	return out
}
