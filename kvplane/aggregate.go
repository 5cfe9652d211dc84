package kvplane

import "pdrouter/metadata"

// Aggregate brings the reports of all ranks of one engine about one transfer together, on D and on P alike, for
// tensor- and pipeline-parallel ranks alike. It is not safe for concurrent use.
type Aggregate struct {
	waiting map[metadata.Rank]rankState
	open    int // ranks that have not come to their end
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

// NewAggregate waits for the given ranks. No ranks at all is a mistake: nothing will ever be released.
func NewAggregate(ranks []metadata.Rank) *Aggregate {
	a := &Aggregate{waiting: make(map[metadata.Rank]rankState, len(ranks))}
	for _, r := range ranks {
		a.waiting[r] = rankOpen
	}
	a.open = len(a.waiting)
	return a
}

// Step takes one report. Strangers, repeats and whatever does not fit are ignored and counted.
func (a *Aggregate) Step(r Report) Verdict {
	state, known := a.waiting[r.Rank]
	if !known || a.over {
		a.ignored++
		return Nothing
	}
	switch {
	case r.Kind == Ready && state == rankOpen, r.Kind == Sent && state == rankOpen:
		a.waiting[r.Rank] = rankReady
		a.open--
		return a.end(r.Kind)
	case r.Kind == Negative && state == rankOpen:
		a.waiting[r.Rank] = rankNegative
		return a.Fail()
	case r.Kind == Safe && state == rankNegative:
		a.waiting[r.Rank] = rankDone
		a.open--
		return a.end(r.Kind)
	}
	a.ignored++
	return Nothing
}

// end says what it means that one rank came to its end.
func (a *Aggregate) end(k ReportKind) Verdict {
	if a.open > 0 {
		return Nothing
	}
	a.over = true
	switch {
	case a.failed:
		return Closed
	case k == Sent:
		return Freed
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
func (a *Aggregate) Counted() (k, n int) { return len(a.waiting) - a.open, len(a.waiting) }

// Ignored returns how many reports had no effect.
func (a *Aggregate) Ignored() int { return a.ignored }
