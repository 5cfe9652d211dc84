// Package wire encodes the messages between two agents. It owns the bytes and their bounds, and decides nothing.
//
// Read in this order: message.go has the messages (docs/kvplane.md has them as a table), encode.go turns one into bytes, header.go puts
// sender and receiver in front, session.go adds a MAC that only the two agents can compute. The packet then goes to the transport. On the
// other side Decode, Session.Verify and ParseWithin undo this; agent/owner.go calls the first, agent/verify.go the others.
package wire

import (
	"time"

	"pdrouter/kvplane"
)

// Message is one message between two agents. Which of its fields are sent depends on Kind.
type Message struct {
	Kind     Kind
	LowWater uint64 // D to P: the lowest number that D has not settled
	Seq      uint64
	ID       kvplane.TransferID
	Need     [2]int
	Groups   []kvplane.BlockList
	Ticket   [16]byte      // write request: digest of the gateway's ticket; zero is none
	Hash     [16]byte      // write request: of the prompt's token ids; zero is not known
	Wait     time.Duration // write request: what is left of D's patience, whole milliseconds
	Digest   [16]byte      // write request: of everything but low-water mark and wait; filled in by ParseWithin
	Status   Status
	Why      string          // cancel
	Settled  []uint64        // ack: numbers above the low-water mark that D has settled
	Lines    []HeartbeatLine // heartbeat, heartbeat_ack
}

// HeartbeatLine is one line of a HEARTBEAT or of its answer.
type HeartbeatLine struct {
	Seq    uint64             // 0: the transfer is still queued on D, which has reserved nothing for it
	ID     kvplane.TransferID // zero: D has given it up, P keeps nothing for it; in an answer only beside number 0
	Status Status             // answer: without a state, P does not know the number; without a detail always
}

// Kind says what a Message is.
type Kind uint8

// The kinds of messages. P is the producer, D the consumer.
const (
	KindWriteRequest Kind = iota + 1 // D → P: write these blocks
	KindStatus                       // P → D: the state of one write request
	KindDone                         // P → D: a status that comes with the write itself
	KindCancel                       // D → P: the transfer is given up; may something still land?
	KindAck                          // D → P: which write requests D has settled
	KindHeartbeat                    // D → P: what D still waits for
	KindHeartbeatAck                 // P → D: what has changed of it, and what P does not know
	KindBye                          // P → D: P shuts down, and none of its writes to D is in progress
)

// Status is what P says about one write request.
type Status struct {
	State  State
	Reason kvplane.Reason
	Detail string
	Tokens int // done: tokens that P has computed
}

// State is what has become of a write request on P.
type State uint8

// The states.
const (
	Waiting  State = iota + 1 // known to P, not offered yet
	Pairing                   // offered, D not reachable yet
	Writing                   // posted
	Done                      // final: every byte has landed
	NotBegun                  // final: nothing was ever posted
	Failed                    // final: something was posted, and its handle has ended
)

// String names the state, "none" for zero.
func (s State) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case Pairing:
		return "pairing"
	case Writing:
		return "writing"
	case Done:
		return "done"
	case NotBegun:
		return "not_begun"
	case Failed:
		return "failed"
	}
	return "none"
}

// Final says that no other state follows.
func (s State) Final() bool { return s >= Done }

// Bounds on what a message may hold.
const (
	MaxDetail  = 512
	MaxBlocks  = 3 << 16 // blocks of a write request, all groups together: at 5 bytes each they fit into transport.MaxMessage
	MaxSettled = 1 << 12 // numbers of a ACK
	MaxLines   = 1 << 12 // lines of a HEARTBEAT
)
