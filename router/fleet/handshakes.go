package fleet

import (
	"pdrouter/internal/background"
	"pdrouter/metadata/handshake"
)

// Handshakes says which pairs have shaken hands, and has those looked at that should.
type Handshakes struct {
	*handshake.Registry
	wake chan struct{} // buffer of one
}

// NewHandshakes returns Handshakes whose Registry is nil yet.
func NewHandshakes() *Handshakes { return &Handshakes{wake: make(chan struct{}, 1)} }

// Schedule has all pairs looked at now. It never blocks.
func (h *Handshakes) Schedule() { background.Notify(h.wake) }

// Wake brings a value after Schedule.
func (h *Handshakes) Wake() <-chan struct{} { return h.wake }
