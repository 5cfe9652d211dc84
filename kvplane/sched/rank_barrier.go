package sched

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// RankBarrier brings the reports of all ranks of one engine about one transfer together, on D and on P alike, for
// tensor- and pipeline-parallel ranks alike. It is not safe for concurrent use. An Aggregator keeps one per transfer.
type RankBarrier struct {
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
	rankFailed
	rankDone
)

// EngineOutcome is what a report means for the whole engine.
type EngineOutcome uint8

// The outcomes.
const (
	Nothing  EngineOutcome = iota // keep waiting
	Released                      // D: every rank is ready; decode may start. Once.
	Failed                        // D: give the transfer up on every rank (Agent.Abandon). Once; the blocks stay pinned.
	Closed                        // D: after Failed, every rank is reusable; the blocks may be used again. Once.
	Freed                         // P: every rank has sent; the blocks may be freed. Once.
)

// String names the outcome.
func (v EngineOutcome) String() string {
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

// NewRankBarrier waits for the given ranks, which must not be changed. No ranks at all is a mistake: nothing will ever be
// released.
func NewRankBarrier(ranks []metadata.Rank) *RankBarrier {
	return &RankBarrier{ranks: ranks, states: make([]rankState, len(ranks)), open: len(ranks)}
}

// Step takes one report. unknown ranks, repeats and whatever does not fit are ignored and counted.
func (a *RankBarrier) Step(r kvplane.Report) EngineOutcome {
	v, _ := a.step(r.Rank, r.Kind)
	return v
}

// step also says whether the report had an effect.
func (a *RankBarrier) step(rank metadata.Rank, k kvplane.ReportKind) (v EngineOutcome, took bool) {
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
	case k == kvplane.Failed && state == rankOpen:
		a.states[i] = rankFailed
		return a.Fail(), true
	case k == kvplane.Reusable && state == rankFailed:
		a.states[i] = rankDone
		a.open--
		return a.end(k), true
	}
	a.ignored++
	return Nothing, false
}

// end says what it means that one rank came to its end.
func (a *RankBarrier) end(k kvplane.ReportKind) EngineOutcome {
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
func (a *RankBarrier) Fail() EngineOutcome {
	if a.failed || a.over {
		return Nothing
	}
	a.failed = true
	return Failed
}

// Counted returns how many ranks have come to their end, and of how many.
func (a *RankBarrier) Counted() (k, n int) { return len(a.ranks) - a.open, len(a.ranks) }

// Ignored returns how many reports had no effect.
func (a *RankBarrier) Ignored() int { return a.ignored }
