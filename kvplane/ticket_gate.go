package kvplane

import (
	"bytes"
	"container/heap"
	"errors"
	"slices"
	"sync"
	"time"

	"pdrouter/metadata"
)

// Gate decides by their tickets which legs one run of an engine takes. It is safe for concurrent use. The zero value is
// not usable.
type Gate struct {
	self metadata.Incarnation

	mu    sync.Mutex
	early bool                     // no gateway has answered yet, and legs wait for it
	keys  []gateKey                // that gateways sign with, the newest first; none: legs need no ticket
	clock time.Time                // the gateway's, when it was last told
	told  time.Time                // when that was
	spent map[TransferID]time.Time // until when an id must be remembered, on the gateway's clock
	until spentHeap                // the same, what may be forgotten first in front
	most  int                      // ids in spent
}

// gateKey is a key that a gateway signs tickets with.
type gateKey struct {
	secret []byte
	until  time.Time // when it opens tickets no more; zero: the last answer names it
}

// keyLife is how long a key opens tickets after the first answer that does not name it: gateways with different keys may answer
// in turn.
const keyLife = 5 * time.Minute

// spentID is an id of a ticket that has served.
type spentID struct {
	until time.Time
	id    TransferID
}

// spentHeap implements heap.Interface.
type spentHeap []spentID

func (h spentHeap) Len() int           { return len(h) }
func (h spentHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h spentHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *spentHeap) Push(x any)        { *h = append(*h, x.(spentID)) }

func (h *spentHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// enrolled is how many keys a gate keeps: the one in use, and the one before or after it while keys are rotated.
const enrolled = 2

// maxSpent bounds the ids that a gate remembers. Only a gateway can fill it.
const maxSpent = 1 << 20

// NewGate returns the gate of one run of an engine. One that is early lets nobody in before Enrol was called.
func NewGate(self metadata.Incarnation, early bool) *Gate {
	return &Gate{self: self, early: early, spent: map[TransferID]time.Time{}, most: maxSpent}
}

// Enrol takes what a gateway answered to the publishing of this engine's record: its keys, the one that it signs with
// first, and the time by its clock, zero if it did not say. A key that answers do not name any more opens tickets for
// another keyLife. A gate that ever had a key asks for tickets until the engine's end, whatever later answers say.
func (g *Gate) Enrol(keys [][]byte, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.early = false
	if !now.IsZero() {
		g.clock, g.told = now, time.Now()
	}
	if len(keys) == 0 {
		return
	}
	var next []gateKey
	add := func(k gateKey) {
		known := slices.ContainsFunc(next, func(x gateKey) bool { return bytes.Equal(x.secret, k.secret) })
		if !known && len(k.secret) > 0 && len(next) < enrolled {
			next = append(next, k)
		}
	}
	for _, key := range keys {
		add(gateKey{secret: bytes.Clone(key)})
	}
	for _, k := range g.keys {
		if k.until.IsZero() {
			k.until = time.Now().Add(keyLife)
		}
		add(k)
	}
	g.keys = next
}

// Admit says whether this engine takes a leg: as prefill or decode, of this transfer, with this peer. A ticket serves
// once. It returns the ticket's digest, zero where no ticket is needed; the error is a TicketFault.
func (g *Gate) Admit(ticket string, leg metadata.Role, id TransferID, peer metadata.Incarnation) ([16]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.early:
		return [16]byte{}, TicketEarly
	case len(g.keys) == 0:
		return [16]byte{}, nil
	}
	var t GatewayTicket
	var err error = TicketForged
	for _, k := range g.keys {
		if !k.until.IsZero() && time.Now().After(k.until) {
			continue
		}
		if t, err = OpenTicket(ticket, k.secret, g.self); !errors.Is(err, TicketForged) {
			break
		}
	}
	if err != nil {
		return [16]byte{}, err
	}
	self, other := t.Decode, t.Prefill
	if leg == metadata.Prefill {
		self, other = t.Prefill, t.Decode
	}
	now := time.Now()
	if !g.told.IsZero() {
		now = g.clock.Add(now.Sub(g.told)) // whatever the clock of this host says
	}
	g.forgetLocked(now)
	switch {
	case self != g.self || other != peer || t.ID != id:
		return [16]byte{}, TicketForeign
	case !t.timely(now):
		return [16]byte{}, TicketExpired
	case !g.spent[id].IsZero():
		return [16]byte{}, TicketSpent
	case len(g.spent) >= g.most:
		return [16]byte{}, TicketFull
	}
	g.spent[id] = t.Issued.Add(t.Valid + 2*ticketLeeway) // once more: the clock may be set back a little
	heap.Push(&g.until, spentID{g.spent[id], id})
	return t.Digest(), nil
}

// forgetLocked drops ids whose tickets have expired.
func (g *Gate) forgetLocked(now time.Time) {
	for len(g.until) > 0 && now.After(g.until[0].until) {
		delete(g.spent, heap.Pop(&g.until).(spentID).id)
	}
}
