package core

import (
	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// What the owner of a consumer asks of it. Nothing of it changes the consumer but EndSession.

// Knows says that an id is the consumer's: queued, expected, or ended not long ago.
func (c *Consumer) Knows(id kvplane.TransferID) bool { return c.Incoming[id] != nil }

// Accepted says whether an Expectation was taken, as no repeat, and is remembered.
func (c *Consumer) Accepted(x *kvplane.Expectation) bool {
	r := c.Incoming[x.ID]
	return r != nil && r.expect == x
}

// Awaits says that a transfer can still become ready.
func (c *Consumer) Awaits(id kvplane.TransferID) bool {
	r := c.Incoming[id]
	return r != nil && r.awaits()
}

func (r *IncomingTransfer) awaits() bool {
	return r.State == incomingPairing || r.State == incomingReceiving
}

// WithoutProducers returns the engine of a transfer whose producers are not known yet.
func (c *Consumer) WithoutProducers(id kvplane.TransferID) (metadata.Incarnation, bool) {
	r := c.Incoming[id]
	if r == nil || !r.producersUnknown {
		return metadata.Incarnation{}, false
	}
	return r.inc, true
}

// LowWaterOf is the lowest number of a session that is not settled, 0 if there is no session.
func (c *Consumer) LowWaterOf(peer PeerID) uint64 {
	if s := c.Sessions[peer]; s != nil {
		return s.LowWater
	}
	return 0
}

// PendingEngines adds the engines that may still write here, or that keep something for it. It looks at sessions, never at transfers.
func (c *Consumer) PendingEngines(out map[metadata.Incarnation]bool) {
	for _, s := range c.Sessions {
		if (len(s.Producers) > 0 || s.keepsQueued()) && !s.ProvenDead {
			out[s.inc] = true
		}
	}
}

// Busy says that something is under way in a session, or remembered but that there is one.
func (c *Consumer) Busy(peer PeerID) bool {
	s := c.Sessions[peer]
	return s != nil && (len(s.Producers) > 0 || s.fenced || s.keepsQueued())
}

// EndSession prepares for the end of a session that is not busy: a later one with the same peer has higher numbers.
func (c *Consumer) EndSession(peer PeerID) {
	if s := c.Sessions[peer]; s != nil {
		c.base = max(c.base, s.Last)
	}
}

// Counts returns how many transfers are expected and not settled, and how many of their blocks may still be written to.
func (c *Consumer) Counts() (expected, pinned int) {
	for _, r := range c.Incoming {
		if r.expect == nil || r.retired {
			continue
		}
		expected++
		if r.State == IncomingFailed || r.awaits() {
			pinned += transfer.CountBlocks(r.expect.Groups)
		}
	}
	return expected, pinned
}
