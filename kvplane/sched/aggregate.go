package sched

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Aggregate brings the reports of all ranks of one engine about one transfer together, on D and on P alike, for
// tensor- and pipeline-parallel ranks alike. It is not safe for concurrent use. An Aggregator keeps one per transfer.
type Aggregate struct {
	ranks   []metadata.Rank
	states  []rankState // of each of ranks
	open    int         // ranks that have not come to their end
	failed  bool
	over    bool
	ignored int
}

type rankState uint8

const (
	rankOpen rankState = iota
	rankReady
	rankNegative
	rankDone
)

// Verdict is what a report means for the whole engine.
type Verdict uint8

// The verdicts.
const (
	Nothing  Verdict = iota // keep waiting
	Released                // D: every rank is ready; decode may start. Once.
	Failed                  // D: give the transfer up on every rank (Agent.Abandon). Once; the blocks stay pinned.
	Closed                  // D: after Failed, every rank is safe; the blocks may be used again. Once.
	Freed                   // P: every rank has sent; the blocks may be freed. Once.
)

// String names the verdict.
func (v Verdict) String() string {
	switch v {
	case Nothing:
		return "nothing"
	case Released:
		return "released"
	case Failed:
		return "failed"
	case Closed:
		return "closed"
	case Freed:
		return "freed"
	}
	return "unknown"
}

// NewAggregate waits for the given ranks, which nobody may change. No ranks at all is a mistake: nothing will ever be
// released.
func NewAggregate(ranks []metadata.Rank) *Aggregate {
	return &Aggregate{ranks: ranks, states: make([]rankState, len(ranks)), open: len(ranks)}
}

// Step takes one report. Strangers, repeats and whatever does not fit are ignored and counted.
func (a *Aggregate) Step(r kvplane.Report) Verdict {
	v, _ := a.step(r.Rank, r.Kind)
	return v
}

// step also says whether the report had an effect.
func (a *Aggregate) step(rank metadata.Rank, k kvplane.ReportKind) (v Verdict, took bool) {
	i := slices.Index(a.ranks, rank)
	if i < 0 || a.over {
		a.ignored++
		return Nothing, false
	}
	state := a.states[i]
	switch {
	case (k == kvplane.Ready || k == kvplane.Sent) && state == rankOpen:
		a.states[i] = rankReady
		a.open--
		return a.end(k), true
	case k == kvplane.Negative && state == rankOpen:
		a.states[i] = rankNegative
		return a.Fail(), true
	case k == kvplane.Safe && state == rankNegative:
		a.states[i] = rankDone
		a.open--
		return a.end(k), true
	}
	a.ignored++
	return Nothing, false
}

// end says what it means that one rank came to its end.
func (a *Aggregate) end(k kvplane.ReportKind) Verdict {
	if a.open > 0 {
		return Nothing
	}
	a.over = true
	switch {
	case k == kvplane.Sent:
		return Freed
	case a.failed:
		return Closed
	}
	return Released
}

// Fail gives the transfer up for all ranks, as at the engine's own deadline. It returns Failed the first time and
// Nothing once the transfer has been released or has failed.
func (a *Aggregate) Fail() Verdict {
	if a.failed || a.over {
		return Nothing
	}
	a.failed = true
	return Failed
}

// Counted returns how many ranks have come to their end, and of how many.
func (a *Aggregate) Counted() (k, n int) { return len(a.ranks) - a.open, len(a.ranks) }

// Ignored returns how many reports had no effect.
func (a *Aggregate) Ignored() int { return a.ignored }
