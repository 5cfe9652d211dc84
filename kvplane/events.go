package kvplane

import "pdrouter/metadata"

// TransferEvent is one step of a transfer on one rank, as the control routes publish it.
type TransferEvent struct {
	Transfer   string        `json:"transfer_id"`
	Engine     string        `json:"engine"`
	Generation uint64        `json:"generation"`
	Rank       metadata.Rank `json:"rank"`
	// Event is registered, offered, written, counted, ready, negative, safe, sent, expired, or gap: the subscriber
	// was too slow and missed some.
	Event  string `json:"event"`
	Peer   string `json:"peer,omitempty"` // the other side's agent or engine
	K      int    `json:"k,omitempty"`    // counted so far
	N      int    `json:"n,omitempty"`    // of
	Blocks int    `json:"blocks,omitempty"`
	Bytes  uint64 `json:"bytes,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Events hands the steps of all transfers of one engine to whoever subscribes. Safe for concurrent use.
type Events struct{}

// NewEvents returns a broadcaster without subscribers.
func NewEvents() *Events { return &Events{} }

// Publish hands an event to every subscriber. It never blocks: a subscriber whose buffer is full loses it.
func (e *Events) Publish(ev TransferEvent) {}

// Subscribe returns a channel of at most buffer waiting events, and the function that ends the subscription and
// closes the channel.
func (e *Events) Subscribe(buffer int) (<-chan TransferEvent, func()) { return nil, func() {} }
