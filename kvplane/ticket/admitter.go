package ticket

import (
	"container/heap"
	"sync"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// Leeway is how far the clocks of gateways and engines may differ. It is that of tokens.
const Leeway = 30 * time.Second

// maxTombstones bounds the transfers that an Admitter remembers. Only gateways can fill it: what is not signed leaves none.
const maxTombstones = 1 << 20

// Admitter decides by their tickets which legs one incarnation of an engine takes. It is safe for concurrent use.
//
// It goes by this host's clock, with Leeway. No other decision about a transfer uses a time of the ticket: lease, wait and
// deadline are durations, which each rank counts on its own clock.
type Admitter struct {
	self metadata.Incarnation
	keys Verifier // nil: legs need no ticket

	mu         sync.Mutex
	tombstones map[transfer.ID]struct{} // transfers that have served
	ends       tombstoneHeap            // the same, the first that may be forgotten in front
	limit      int                      // of tombstones
}

// tombstone is a transfer that has served.
type tombstone struct {
	until time.Time // when its ticket is surely over
	id    transfer.ID
}

// NewAdmitter returns one for an engine that trusts these keys. keys must be those of now: a key that is withdrawn opens no ticket
// from then on. With nil keys every leg is taken, with a ticket or without: nothing can be checked.
func NewAdmitter(self metadata.Incarnation, keys Verifier) *Admitter {
	return &Admitter{self: self, keys: keys, tombstones: map[transfer.ID]struct{}{}, limit: maxTombstones}
}

// Admit says whether the engine takes a leg: as prefill or decode, of this transfer, with this peer. A ticket serves once. It
// returns the ticket's digest, which the two engines compare; zero is that of no ticket. The error is a Fault.
func (a *Admitter) Admit(text string, leg metadata.Role, id transfer.ID, peer metadata.Incarnation) ([16]byte, error) {
	if a.keys == nil {
		if s, err := parse(text); err == nil {
			return digestOf(s.payload), nil // the peer may have keys, and compares
		}
		return [16]byte{}, nil
	}
	t, err := Open(text, a.keys)
	if err != nil {
		return [16]byte{}, err
	}
	self, other := t.Decode, t.Prefill
	if leg == metadata.Prefill {
		self, other = t.Prefill, t.Decode
	}
	now := time.Now()
	switch {
	case self != a.self || other != peer || t.ID != id:
		return [16]byte{}, Foreign
	case now.Before(t.Issued.Add(-Leeway)), now.After(t.Issued.Add(t.Valid + Leeway)):
		return [16]byte{}, Expired
	}
	if err := a.serve(id, t.Issued.Add(t.Valid+2*Leeway), now); err != nil {
		return [16]byte{}, err
	}
	return t.Digest(), nil
}

// serve leaves a tombstone for a transfer that has none. until includes Leeway a second time: the clock may be set back.
func (a *Admitter) serve(id transfer.ID, until, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.ends) > 0 && now.After(a.ends[0].until) {
		delete(a.tombstones, heap.Pop(&a.ends).(tombstone).id)
	}
	if _, served := a.tombstones[id]; served {
		return Spent
	}
	if len(a.tombstones) >= a.limit {
		return Full
	}
	a.tombstones[id] = struct{}{}
	heap.Push(&a.ends, tombstone{until, id})
	return nil
}

// tombstoneHeap implements heap.Interface.
type tombstoneHeap []tombstone

func (h tombstoneHeap) Len() int           { return len(h) }
func (h tombstoneHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h tombstoneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *tombstoneHeap) Push(x any)        { *h = append(*h, x.(tombstone)) }

func (h *tombstoneHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
