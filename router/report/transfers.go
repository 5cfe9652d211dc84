package report

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pdrouter/kvplane/control"
	"pdrouter/metadata"
)

// Transfers are what the engines' event streams said of the latest KV transfers. They are safe for concurrent use.
type Transfers struct {
	mu    sync.Mutex
	max   int
	byID  map[string]*transferState
	order []string // ids, oldest first
	moved map[[2]string]*Moved

	rejected uint64 // reports that their sender may not make, or that cannot be true
}

// Limits of one transfer, far above what can be moved. Reports that exceed them are rejected.
const (
	maxCount  = 1 << 31 // of any count
	maxBytes  = 1 << 44
	maxReason = 200 // bytes of why it failed
)

// Moved is what the plane has written from one prefill into one decode engine since the router's start, as far as the
// event streams told.
type Moved struct {
	Prefill, Decode string
	Blocks, Bytes   uint64 // blocks are counted at each consumer rank
}

// transferState is what is known of one transfer.
type transferState struct {
	Transfer
	size    metadata.Rank   // of the engine whose ranks are the consumers; zero if it is not known
	moved   *Moved          // the pair's; its Decode is the engine whose ranks are the consumers
	ready   map[string]bool // those that have all
	readyAt time.Time       // when the last of them said so
}

// newTransfers returns Transfers that keep the latest n.
func newTransfers(n int) *Transfers {
	return &Transfers{max: n, byID: make(map[string]*transferState, n), moved: make(map[[2]string]*Moved)}
}

// Open adds a transfer from one engine to the ranks of another, of this size. Events of transfers that were not added are ignored.
// If there are too many, the oldest is dropped.
func (b *Transfers) Open(id, prefill, decode string, size metadata.Rank) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, again := b.byID[id]
	if len(b.order) >= b.max && !again {
		delete(b.byID, b.order[0])
		b.order = b.order[1:]
	}
	pair := [2]string{prefill, decode}
	if b.moved[pair] == nil {
		b.moved[pair] = &Moved{Prefill: prefill, Decode: decode}
	}
	b.byID[id] = &transferState{moved: b.moved[pair], size: size}
	if !again {
		b.order = append(b.order, id)
	}
}

// Note records one event, which came at the time at on the stream of the engine from. An engine may report only its own part in its own
// transfers. Other reports are counted and ignored.
func (b *Transfers) Note(from string, e control.Event, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[e.Transfer]
	if t == nil {
		return
	}
	if e.Engine != from || !t.concerns(from, e.Event) || !t.possible(e) {
		b.rejected++
		return
	}
	rank := e.Rank.String()
	switch e.Event {
	case control.Sent:
		t.Bytes += int64(e.Bytes)
		t.moved.Bytes += e.Bytes
	case control.Ready:
		t.count(rank, e)
		if t.ready == nil {
			t.ready = make(map[string]bool)
		}
		if !t.ready[rank] {
			t.Blocks += e.Blocks
			t.moved.Blocks += uint64(e.Blocks)
		}
		t.ready[rank] = true
		t.readyAt = at
		t.Ready = t.Failed == "" && len(t.ready) >= max(len(t.Counted), t.size.PP*t.size.TP)
	case control.Failed:
		t.count(rank, e)
		if t.Failed == "" {
			t.Failed = e.Reason[:min(len(e.Reason), maxReason)]
			if t.Failed == "" {
				t.Failed = "failed"
			}
		}
		t.Ready = false
	}
}

// count records how many producers a consumer has heard from.
func (t *transferState) count(rank string, e control.Event) {
	if e.N == 0 { // it needed none
		return
	}
	if t.Counted == nil {
		t.Counted = make(map[string]string)
	}
	t.Counted[rank] = fraction(e.K, e.N)
}

// concerns reports whether the engine may report the event: prefill reports what it sent, decode how it came out.
func (t *transferState) concerns(engine, event string) bool {
	switch event {
	case control.Sent:
		return engine == t.moved.Prefill
	case control.Ready, control.Failed:
		return engine == t.moved.Decode
	}
	return false
}

// possible reports whether an event can be true: its rank exists, and its numbers are within the limits. So a transfer keeps at most one
// entry per rank that takes part.
func (t *transferState) possible(e control.Event) bool {
	r := e.Rank
	switch {
	case min(r.DP, r.PP, r.TP, e.K, e.N, e.Blocks) < 0, max(r.DP, r.PP, r.TP) >= metadata.MaxRanks, max(e.K, e.N, e.Blocks) > maxCount:
		return false
	case e.Event == control.Sent:
		return e.Bytes <= maxBytes && t.Bytes <= maxBytes-int64(e.Bytes)
	case t.size == metadata.Rank{}:
		return max(len(t.Counted), len(t.ready)) < metadata.MaxRanks
	}
	return r.DP < t.size.DP && r.PP < t.size.PP && r.TP < t.size.TP
}

// Rejected returns how many reports their sender might not make, or could not be true.
func (b *Transfers) Rejected() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rejected
}

// read returns a copy of what is known of a transfer and when its last consumer was ready, or nil if it is not known.
func (b *Transfers) read(id string) (*Transfer, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[id]
	if t == nil {
		return nil, time.Time{}
	}
	out := t.Transfer
	out.Counted = maps.Clone(t.Counted)
	if !out.Ready {
		return &out, time.Time{}
	}
	return &out, t.readyAt
}

// Over reports whether a transfer is ready at all its consumers, or unknown.
func (b *Transfers) Over(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[id]
	return t == nil || t.Ready
}

// Failed reports whether a consumer of a transfer has said that it does not get its blocks.
func (b *Transfers) Failed(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[id]
	return t != nil && t.Failed != ""
}

// Totals returns what was moved between each pair, sorted by the engines' names.
func (b *Transfers) Totals() []Moved {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Moved, 0, len(b.moved))
	for _, m := range b.moved {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(x, y Moved) int {
		return cmp.Or(strings.Compare(x.Prefill, y.Prefill), strings.Compare(x.Decode, y.Decode))
	})
	return out
}

// Forget drops the totals of an engine's pairs. It keeps the transfers.
func (b *Transfers) Forget(engine string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.moved, func(pair [2]string, _ *Moved) bool { return pair[0] == engine || pair[1] == engine })
}

func fraction(k, n int) string { return strconv.Itoa(k) + "/" + strconv.Itoa(n) }
