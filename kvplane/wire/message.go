// Package wire has what two agents say to each other: messages and their bytes, the envelope that names sender and receiver, and the code
// that only the two can compute. It believes nothing that it reads, and decides nothing. Package agent uses it; docs/kvplane.md has the
// table of messages.
package wire

import (
	"time"

	"pdrouter/kvplane"
)

// Message is what two agents say to each other; docs/kvplane.md has the table. Which fields count depends on kind.
type Message struct {
	Kind    Kind
	Floor   uint64 // D to P: the lowest number that D has not settled
	Seq     uint64
	ID      kvplane.TransferID
	Need    [2]int
	Groups  []kvplane.BlockList
	Ticket  [16]byte      // register: digest of the gateway's ticket; zero is none
	Hash    [16]byte      // register: of the prompt's token ids; zero is not known
	Wait    time.Duration // register: what is left of D's patience, whole milliseconds
	Digest  [16]byte      // register: of everything but floor and wait; filled in by parseMessage
	Status  Status
	Why     string   // cancel
	Settled []uint64 // floor: numbers above the floor that D has settled
	Beats   []Beat   // beat, beat_ack
}

// Beat is one line of a BEAT or of its answer.
type Beat struct {
	Seq    uint64             // 0: the transfer is still queued on D, which has reserved nothing for it
	ID     kvplane.TransferID // zero: D has given it up, P keeps nothing for it; in an answer only beside number 0
	Status Status             // answer: without a state, P does not know the number; without a detail always
}

// Kind says what a Message is.
type Kind uint8

// The kinds of messages. P is the producer, D the consumer.
const (
	KindRegister Kind = iota + 1 // D → P: these blocks are mine, write them
	KindStatus                   // P → D: the state of one registration
	KindDone                     // P → D: a status that comes with the write itself
	KindCancel                   // D → P: I give up, what may still land?
	KindFloor                    // D → P: what I have settled
	KindBeat                     // D → P: what I still wait for
	KindBeatAck                  // P → D: what has changed of it, and what I do not know
	KindBye                      // P → D: I end, and nothing that I have posted is in progress
)

// Status is P's word on one registration.
type Status struct {
	State  State
	Reason kvplane.Reason
	Detail string
	Tokens int // done: tokens that P has computed
}

// State is what has become of a registration on P.
type State uint8

// The states.
const (
	Waiting  State = iota + 1 // registered, not offered yet
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
	MaxBlocks  = 1 << 20 // blocks of a registration, all groups together
	MaxSettled = 1 << 12 // numbers of a FLOOR
	MaxBeats   = 1 << 12 // lines of a BEAT
)
