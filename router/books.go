package router

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pdrouter/kvplane"
)

// books keep what the engines' event streams said of the latest transfers. They are safe for concurrent use.
type books struct {
	mu    sync.Mutex
	max   int
	byID  map[string]*entry
	order []string // ids, oldest first
	moved map[[2]string]*Moved

	foreign uint64 // reports that were not their sender's to make
}

// Moved is what the plane has written from one prefill into one decode engine since the router's start, as far as the
// event streams told.
type Moved struct {
	Prefill, Decode string
	Blocks, Bytes   uint64 // blocks are counted at each consumer rank
}

// entry is one transfer's page.
type entry struct {
	Books
	ranks   int             // how many consumers there are at least
	moved   *Moved          // the pair's; its Decode is the engine whose ranks are the consumers
	ready   map[string]bool // those that have all
	readyAt time.Time       // when the last of them said so
}

func newBooks(n int) *books {
	return &books{max: n, byID: make(map[string]*entry, n), moved: make(map[[2]string]*Moved)}
}

// open makes a page for a transfer from one engine to the ranks of another, so that events of strangers take no room.
func (b *books) open(id, prefill, decode string, ranks int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.order) >= b.max {
		delete(b.byID, b.order[0])
		b.order = b.order[1:]
	}
	pair := [2]string{prefill, decode}
	if b.moved[pair] == nil {
		b.moved[pair] = &Moved{Prefill: prefill, Decode: decode}
	}
	b.byID[id] = &entry{moved: b.moved[pair], ranks: ranks}
	b.order = append(b.order, id)
}

// note enters one event, which came at the time at on the stream of the engine from. An engine reports of its own part
// in its own transfers; what else it says is counted and not entered.
func (b *books) note(from string, e kvplane.TransferEvent, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[e.Transfer]
	if t == nil {
		return
	}
	if e.Engine != from || !t.concerns(from, e.Event) {
		b.foreign++
		return
	}
	rank := e.Rank.String()
	switch e.Event {
	case "written":
		t.Bytes += int64(e.Bytes)
		t.moved.Bytes += e.Bytes
	case "counted":
		if e.Engine != t.moved.Decode { // prefill's ranks count what they have sent
			return
		}
		if t.Counted == nil {
			t.Counted = make(map[string]string)
		}
		t.Counted[rank] = fraction(e.K, e.N)
	case "ready":
		if t.ready == nil {
			t.ready = make(map[string]bool)
		}
		if !t.ready[rank] {
			t.Blocks += e.Blocks
			t.moved.Blocks += uint64(e.Blocks)
		}
		t.ready[rank] = true
		t.readyAt = at
		t.Ready = t.Failed == "" && len(t.ready) >= max(len(t.Counted), t.ranks)
	case "negative":
		if t.Failed == "" {
			t.Failed = e.Reason
			if t.Failed == "" {
				t.Failed = "failed"
			}
		}
		t.Ready = false
	}
}

// concerns reports whether an event is one that the engine has a part in: prefill writes, decode has all.
func (t *entry) concerns(engine, event string) bool {
	switch event {
	case "written":
		return engine == t.moved.Prefill
	case "ready":
		return engine == t.moved.Decode
	}
	return engine == t.moved.Prefill || engine == t.moved.Decode
}

// strangers returns how many reports were not their sender's to make.
func (b *books) strangers() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.foreign
}

// read returns a copy of the transfer's page and when its last consumer was ready, or nil if there is no page.
func (b *books) read(id string) (*Books, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.byID[id]
	if t == nil {
		return nil, time.Time{}
	}
	page := t.Books
	page.Counted = maps.Clone(t.Counted)
	if !page.Ready {
		return &page, time.Time{}
	}
	return &page, t.readyAt
}

// landed returns what says whether a transfer to the engine is over, as far as is known: it is taken for over if the
// engine's events cannot be relied on, because its stream was not open all the time from now on.
func (r *Router) landed(id string, decode *engine) func() bool {
	if decode.control == "" {
		return nil
	}
	edition := decode.streams.Load()
	if !decode.followed.Load() {
		return nil
	}
	return func() bool {
		page, _ := r.books.read(id)
		return page == nil || page.Ready || !decode.followed.Load() || decode.streams.Load() != edition
	}
}

// ranks returns how many ranks of an engine that publishes records take part in a transfer.
func (r *Router) ranks(e *engine) int {
	records := r.records(e)
	if len(records) == 0 {
		return 0
	}
	return records[0].Size.PP * records[0].Size.TP
}

// totals returns what was moved between each pair, in the order of their names.
func (b *books) totals() []Moved {
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
