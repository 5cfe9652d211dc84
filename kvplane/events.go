package kvplane

import (
	"sync"

	"pdrouter/metadata"
)

// TransferEvent says how a transfer came out on one rank, as the control routes publish it.
type TransferEvent struct {
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

const (
	readyEvent  = "ready"  // decode: this rank has all its blocks
	sentEvent   = "sent"   // prefill: this rank writes nothing more
	failedEvent = "failed" // decode: this rank does not get its blocks
	gapEvent    = "gap"    // what a subscriber gets in place of the events it was too slow for
	openEvent   = "open"   // a stream begins; after the first one, events may have been missed
	closedEvent = "closed" // a stream has broken, or could not be opened; why is its reason
)

// Events hands the events of all transfers of one engine to whoever subscribes. Safe for concurrent use.
type Events struct {
	mu   sync.Mutex
	subs map[*subscription]struct{}
}

type subscription struct {
	events chan TransferEvent
	missed bool
}

// NewEvents returns a broadcaster without subscribers.
func NewEvents() *Events { return &Events{subs: map[*subscription]struct{}{}} }

// Publish hands an event to every subscriber. It never blocks: a subscriber whose buffer is full loses it and finds a
// gap event in front of the next one that fits.
func (e *Events) Publish(ev TransferEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subs {
		if s.missed {
			if cap(s.events)-len(s.events) < 2 {
				continue
			}
			s.events <- TransferEvent{Event: gapEvent, Engine: ev.Engine, Generation: ev.Generation}
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
func (e *Events) Subscribe(buffer int) (<-chan TransferEvent, func()) {
	s := &subscription{events: make(chan TransferEvent, max(buffer, 2))}
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
