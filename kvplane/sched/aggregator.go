package sched

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/metadata"
)

// Aggregator brings together what all ranks of one engine report about all its transfers: once per step, the
// RankReports of that step become one Outcome for the scheduler, all / any / union. It alone knows what is in a
// report. It performs no I/O, reads no clock and allocates nothing in a step without news. Not safe for concurrent use.
type Aggregator struct {
	engine    metadata.Incarnation
	ranks     []metadata.Rank
	times     kvplane.Times
	transfers map[kvplane.TransferID]*awaited
	timers    alarm.Timers
	heard     []heard // of each of ranks
	ignored   Ignored
	missed    uint64
}

// awaited is one transfer of the engine.
type awaited struct {
	RankBarrier
	id       kvplane.TransferID
	phase    phase
	groups   []kvplane.BlockList // as they were ordered
	ended    Ended               // what has been gathered for the outcome
	deadline time.Duration
	failing  time.Duration // when it failed
}

// phase says what of a transfer the engine waits for.
type phase uint8

const (
	phaseQueued   phase = iota // D: to have blocks for it; nothing is reserved
	phaseExpired               // D: nothing any more, but ranks may still say that it has expired
	phaseExpected              // D
	phaseOffered               // P
)

// order is the kind of order whose reports the engine waits for in the phase.
func (p phase) order() kvplane.OrderKind {
	switch p {
	case phaseExpected:
		return kvplane.ExpectOrder
	case phaseOffered:
		return kvplane.OfferOrder
	}
	return kvplane.QueueOrder
}

func (t *awaited) Due() time.Duration { return t.deadline }

// heard is what a rank has said last.
type heard struct {
	seq        uint64
	handshakes int
	pending    []kvplane.TransferID
}

// Outcome is what one step's reports mean for the scheduler. Read Failed before Closed: a transfer may be in both.
// Its slices are used again by the next Step that it is given to; what is in Ended.Blocks stays.
type Outcome struct {
	Released []Ended // D: every rank is ready, decode may start
	// Failed: some rank has failed, or the deadline is over. Abandon the transfer on every rank. D's blocks stay
	// pinned until it is Closed, P's until it is Freed; what was only queued has none, and this is its end.
	Failed     []Ended
	Closed     []Ended // D: failed, and every rank is reusable: the blocks may be used again
	Freed      []Ended // P: every rank has sent: the blocks may be freed
	Handshakes int     // how many the ranks have pending, summed
	Pending    []kvplane.TransferID
	Events     []control.Event // of the reports, for the gateway
}

// Ended is how a transfer came out, over all ranks.
type Ended struct {
	ID     kvplane.TransferID
	Rank   metadata.Rank  // Failed: the first rank that failed; none if the deadline was over
	Reason kvplane.Reason // Failed, Closed: the first one; Freed: the first of a consumer that went without
	Detail string
	// Blocks holds, per group and sorted, the union of the blocks that failed: in Failed those of the ranks that have
	// said so by then, in Closed of all. At the deadline all of the transfer's are taken for failed.
	Blocks [][]int32
	Tokens int    // Released: the least that any rank named; 0 if none did
	Bytes  uint64 // Freed: written by all ranks
	K, N   int    // ranks that have come to their end, of how many
}

// Ignored counts what had no effect.
type Ignored struct {
	Foreign  uint64 // RankReports of another engine or generation
	Stranger uint64 // of a rank that the engine does not have, or Reports of another rank than the RankReport's
	Doubled  uint64 // RankReports that came once more, or late
	Unknown  uint64 // Reports on transfers that are over, or never were
	Misfit   uint64 // Reports that do not fit what the rank has said before, repeats among them
	Stale    uint64 // Reports that answer another order than the transfer's newest
	Orders   uint64 // orders on a transfer id in use
}

// NewAggregator waits for the reports of an engine's ranks. times are those of its agents.
func NewAggregator(engine metadata.Incarnation, ranks []metadata.Rank, times kvplane.Times) *Aggregator {
	return &Aggregator{
		engine: engine, ranks: slices.Clone(ranks), times: times.WithDefaults(), transfers: map[kvplane.TransferID]*awaited{},
		heard: make([]heard, len(ranks)),
	}
}

// holdLeases is how many leases P's blocks may be held: heartbeats extend a lease, but nothing waits for ever.
const holdLeases = 20

// Order notes what is ordered of all ranks, at the time now. A transfer's deadline begins with it.
func (a *Aggregator) Order(now time.Duration, o *Orders) {
	for i := range o.Queue {
		id, deadline := o.Queue[i].ID, now+a.times.Queue+a.times.NetDelay
		if t := a.transfers[id]; t != nil && t.phase == phaseQueued {
			t.deadline = deadline
			a.timers.Set(t)
		} else {
			a.open(&awaited{id: id, phase: phaseQueued, deadline: deadline})
		}
	}
	for i := range o.Expect {
		x := &o.Expect[i]
		if t := a.transfers[x.ID]; t != nil && t.phase < phaseExpected {
			a.forget(t)
		}
		wait := x.Wait
		if wait <= 0 {
			wait = a.times.Wait
		}
		// A rank fails the transfer before that; this is for a rank that reports nothing.
		a.open(&awaited{id: x.ID, phase: phaseExpected, groups: x.Groups, deadline: now + wait + a.times.Deadline + a.times.NetDelay})
	}
	for i := range o.Offer {
		x := &o.Offer[i]
		a.open(&awaited{id: x.ID, phase: phaseOffered, groups: x.Groups, deadline: now + holdLeases*a.times.Lease})
	}
	for i := range o.Abandon {
		switch t := a.transfers[o.Abandon[i].ID]; {
		case t == nil || t.phase == phaseExpired:
		case t.phase == phaseQueued:
			a.expireQueued(t, now)
		default:
			t.deadline = 0
			if t.Fail() == Failed {
				t.failing, t.ended.Reason, t.ended.Detail = now, kvplane.Stopped, o.Abandon[i].Why
			}
		}
	}
}

// expireQueued ends a queued transfer: ranks may say that it has expired, but need not.
func (a *Aggregator) expireQueued(t *awaited, now time.Duration) {
	t.phase, t.deadline = phaseExpired, now+a.times.Wait
	a.timers.Set(t)
}

func (a *Aggregator) forget(t *awaited) {
	t.deadline = 0
	delete(a.transfers, t.id)
}

func (a *Aggregator) open(t *awaited) {
	if a.transfers[t.id] != nil {
		a.ignored.Orders++
		return
	}
	t.RankBarrier = *NewRankBarrier(a.ranks)
	t.ended.ID = t.id
	a.transfers[t.id] = t
	a.timers.Set(t)
}

// Step takes the RankReports of one step, at the time now, and fills out. A rank that is missing is simply not heard.
func (a *Aggregator) Step(now time.Duration, reports []RankReport, out *Outcome) {
	out.Released, out.Failed, out.Closed, out.Freed = out.Released[:0], out.Failed[:0], out.Closed[:0], out.Freed[:0]
	out.Events = out.Events[:0]
	for i := range reports {
		a.hear(now, &reports[i], out)
	}
	for who := a.timers.Pop(now); who != nil; who = a.timers.Pop(now) {
		if t, ok := who.(*awaited); ok {
			a.late(now, t, out)
		}
	}
	a.mergePending(out)
}

// late ends the wait for a transfer whose deadline is over.
func (a *Aggregator) late(now time.Duration, t *awaited, out *Outcome) {
	t.deadline = 0
	if t.phase == phaseExpired {
		a.forget(t)
		return
	}
	if t.Fail() != Failed {
		return
	}
	t.failing, t.ended.Reason = now, kvplane.Deadline
	switch t.phase {
	case phaseQueued:
		a.expireQueued(t, now)
	case phaseExpected:
		t.ended.fail(t.groups)
	}
	out.Failed = append(out.Failed, t.end())
}

// hear takes one RankReport.
func (a *Aggregator) hear(now time.Duration, r *RankReport, out *Outcome) {
	if r.Engine != a.engine {
		a.ignored.Foreign++
		return
	}
	i := slices.Index(a.ranks, r.Rank)
	if i < 0 {
		a.ignored.Stranger++
		return
	}
	h := &a.heard[i]
	news := len(r.Reports) > 0
	if r.Seq < h.seq || r.Seq == h.seq && news {
		a.ignored.Doubled++
		return
	}
	first := h.seq + 1
	if !news {
		first = h.seq
	}
	a.missed += r.Seq - first
	h.seq, h.handshakes, h.pending = r.Seq, r.Handshakes, append(h.pending[:0], r.Pending...)
	for j := range r.Reports {
		x := &r.Reports[j]
		a.report(now, r.Rank, x, out)
		if kind := eventOf(x.Kind); kind != "" && x.Rank == r.Rank {
			out.Events = append(out.Events, control.Event{
				Transfer: x.ID.String(), Engine: r.Engine.Engine, Generation: r.Engine.Generation, Rank: r.Rank, Event: kind,
				K: x.K, N: x.N, Blocks: x.Blocks, Bytes: x.Bytes, Reason: x.Reason.String(),
			})
		}
	}
}

// eventOf is the event of a report for the gateway, "" for none: when blocks may be used again concerns their engine alone.
func eventOf(kind kvplane.ReportKind) string {
	switch kind {
	case kvplane.Ready:
		return control.Ready
	case kvplane.Failed:
		return control.Failed
	case kvplane.Sent:
		return control.Sent
	}
	return ""
}

// report takes one report of a rank.
func (a *Aggregator) report(now time.Duration, rank metadata.Rank, r *kvplane.Report, out *Outcome) {
	t := a.transfers[r.ID]
	switch {
	case r.Rank != rank:
		a.ignored.Stranger++
		return
	case t == nil:
		a.ignored.Unknown++
		return
	case r.Order != t.phase.order(): // as of a queued transfer that expired while it was being expected
		a.ignored.Stale++
		return
	case t.phase == phaseExpired && (r.Kind == kvplane.Failed || r.Kind == kvplane.Reusable):
		return
	case t.phase == phaseExpired, t.phase == phaseQueued && r.Kind != kvplane.Failed, (t.phase == phaseOffered) != (r.Kind == kvplane.Sent):
		a.ignored.Misfit++
		return
	}
	v, took := t.step(rank, r.Kind)
	if !took {
		a.ignored.Misfit++
		return
	}
	t.ended.add(r)
	switch v {
	case Released:
		out.Released = append(out.Released, t.end())
	case Failed:
		t.failing = now
		out.Failed = append(out.Failed, t.end())
	case Closed:
		out.Closed = append(out.Closed, t.end())
	case Freed:
		out.Freed = append(out.Freed, t.end())
	}
	switch {
	case t.phase == phaseQueued:
		a.expireQueued(t, now)
	case t.over:
		a.forget(t)
	}
}

// add gathers what a report that counts has in it.
func (e *Ended) add(r *kvplane.Report) {
	if e.Reason == 0 && r.Reason != 0 && (r.Kind == kvplane.Failed || r.Kind == kvplane.Sent) {
		e.Rank, e.Reason, e.Detail = r.Rank, r.Reason, r.Detail
	}
	switch r.Kind {
	case kvplane.Ready:
		if r.Tokens > 0 && (e.Tokens == 0 || r.Tokens < e.Tokens) {
			e.Tokens = r.Tokens
		}
	case kvplane.Failed:
		e.fail(r.Groups)
	case kvplane.Sent:
		e.Bytes += r.Bytes
	}
}

// fail unites blocks with those that have failed before.
func (e *Ended) fail(groups []kvplane.BlockList) {
	for len(e.Blocks) < len(groups) {
		e.Blocks = append(e.Blocks, nil)
	}
	for i, g := range groups {
		if len(g.Blocks) == 0 {
			continue
		}
		all := append(slices.Clone(e.Blocks[i]), g.Blocks...) // what was given out before stays as it is
		slices.Sort(all)
		e.Blocks[i] = slices.Compact(all)
	}
}

// end is what the scheduler gets.
func (t *awaited) end() Ended {
	e := t.ended
	e.K, e.N = t.Counted()
	e.Blocks = slices.Clone(e.Blocks)
	return e
}

// mergePending brings the pending handshakes of all ranks together, as each was heard last.
func (a *Aggregator) mergePending(out *Outcome) {
	out.Handshakes, out.Pending = 0, out.Pending[:0]
	for i := range a.heard {
		out.Handshakes += a.heard[i].handshakes
		out.Pending = append(out.Pending, a.heard[i].pending...)
	}
	slices.SortFunc(out.Pending, kvplane.TransferID.Compare)
	out.Pending = slices.Compact(out.Pending)
}

// Next returns when the earliest deadline is over, 0 if there is none.
func (a *Aggregator) Next() time.Duration { return a.timers.Next() }

// Open returns how many transfers have not come to their end on every rank.
func (a *Aggregator) Open() int { return len(a.transfers) }

// Awaits returns which order of a transfer the engine waits for, false if it knows no such transfer.
func (a *Aggregator) Awaits(id kvplane.TransferID) (kvplane.OrderKind, bool) {
	t := a.transfers[id]
	if t == nil {
		return 0, false
	}
	return t.phase.order(), true
}

// Ignored returns what had no effect so far.
func (a *Aggregator) Ignored() Ignored { return a.ignored }

// Missed returns how many RankReports never came, as the numbers of those that did tell. None may: what was in them is
// not said again, and only the deadline ends what waited for it.
func (a *Aggregator) Missed() uint64 { return a.missed }
