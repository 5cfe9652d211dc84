// Package control has the HTTP routes between a gateway and an engine of connector kvplane: the stream of a transfer's events, and the request
// to cancel one. Engines serve Handler (handler.go); the gateway calls Watch and CancelTransfer (watch.go). It links no agent.
package control

import (
	"sync"

	"pdrouter/metadata"
)

// Event says how a transfer came out on one rank, as the control routes publish it.
type Event struct {
	Transfer   string        `json:"transfer_id"`
	Engine     string        `json:"engine"`
	Generation uint64        `json:"generation"`
	Rank       metadata.Rank `json:"rank"`
	// Event is ready, sent or failed, or gap: the subscriber was too slow and missed some. Watch adds open and closed,
	// of the stream itself, which name no transfer.
	Event  string `json:"event"`
	K      int    `json:"k,omitempty"`      // ready, failed: producers that have written
	N      int    `json:"n,omitempty"`      // of
	Blocks int    `json:"blocks,omitempty"` // ready: of this rank
	Bytes  uint64 `json:"bytes,omitempty"`  // sent: written by this rank
	Reason string `json:"reason,omitempty"` // failed; sent if a consumer went without
}

// The events of a transfer, and of the stream itself.
const (
	Ready  = "ready"  // decode: this rank has all its blocks
	Sent   = "sent"   // prefill: this rank writes nothing more
	Failed = "failed" // decode: this rank does not get its blocks
	Gap    = "gap"    // what a subscriber gets in place of the events it was too slow for
	Open   = "open"   // a stream begins; after the first one, events may have been missed
	Closed = "closed" // a stream has broken, or could not be opened; why is its reason
)

// Broadcaster hands the events of all transfers of one engine to whoever subscribes. Safe for concurrent use.
type Broadcaster struct {
	mu   sync.Mutex
	subs map[*subscription]struct{}
}

type subscription struct {
	events chan Event
	missed bool
}

// NewBroadcaster returns a broadcaster without subscribers.
func NewBroadcaster() *Broadcaster { return &Broadcaster{subs: map[*subscription]struct{}{}} }

// Publish hands an event to every subscriber. It never blocks: a subscriber whose buffer is full loses it and finds a
// gap event in front of the next one that fits.
func (e *Broadcaster) Publish(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subs {
		if s.missed {
			if cap(s.events)-len(s.events) < 2 {
				continue
			}
			s.events <- Event{Event: Gap, Engine: ev.Engine, Generation: ev.Generation}
			s.missed = false
		}
		select {
		case s.events <- ev:
		default:
			s.missed = true
		}
	}
}

// Subscribe returns a channel of at most buffer waiting events (at least 2), and the function that ends the
// subscription and closes the channel; it may be called twice.
func (e *Broadcaster) Subscribe(buffer int) (<-chan Event, func()) {
	s := &subscription{events: make(chan Event, max(buffer, 2))}
	e.mu.Lock()
	e.subs[s] = struct{}{}
	e.mu.Unlock()
	return s.events, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if _, open := e.subs[s]; open {
			delete(e.subs, s)
			close(s.events) // nobody publishes: mu is held
		}
	}
}
