package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// message is what two agents say to each other; docs/kvplane.md has the table. Which fields count depends on kind.
type message struct {
	kind    messageKind
	floor   uint64 // D to P: the lowest number that D has not settled
	seq     uint64
	id      kvplane.TransferID
	need    [2]int
	groups  []kvplane.BlockList
	ticket  [16]byte      // register: digest of the gateway's ticket; zero is none
	hash    [16]byte      // register: of the prompt's token ids; zero is not known
	wait    time.Duration // register: what is left of D's patience, whole milliseconds
	digest  [16]byte      // register: of everything but floor and wait; filled in by parseMessage
	status  status
	why     string   // cancel
	settled []uint64 // floor: numbers above the floor that D has settled
	beats   []beat   // beat, beat_ack
}

// beat is one line of a BEAT or of its answer.
type beat struct {
	seq    uint64             // 0: the transfer is still queued on D, which has reserved nothing for it
	id     kvplane.TransferID // zero: D has given it up, P keeps nothing for it; in an answer only beside number 0
	status status             // answer: without a state, P does not know the number; without a detail always
}

type messageKind uint8

const (
	msgRegister messageKind = iota + 1 // D → P: these blocks are mine, write them
	msgStatus                          // P → D: the state of one registration
	msgDone                            // P → D: a status that comes with the write itself
	msgCancel                          // D → P: I give up, what may still land?
	msgFloor                           // D → P: what I have settled
	msgBeat                            // D → P: what I still wait for
	msgBeatAck                         // P → D: what has changed of it, and what I do not know
	msgBye                             // P → D: I end, and nothing that I have posted is in progress
)

// status is P's word on one registration.
type status struct {
	state  statusState
	reason kvplane.Reason
	detail string
	tokens int // done: tokens that P has computed
}

type statusState uint8

const (
	statusWaiting  statusState = iota + 1 // registered, not offered yet
	statusPairing                         // offered, D not reachable yet
	statusWriting                         // posted
	statusDone                            // final: every byte has landed
	statusNotBegun                        // final: nothing was ever posted
	statusFailed                          // final: something was posted, and its handle has ended
)

func (s statusState) String() string {
	switch s {
	case statusWaiting:
		return "waiting"
	case statusPairing:
		return "pairing"
	case statusWriting:
		return "writing"
	case statusDone:
		return "done"
	case statusNotBegun:
		return "not_begun"
	case statusFailed:
		return "failed"
	}
	return "none"
}

func (s statusState) final() bool { return s >= statusDone }

// Bounds on what a message may hold.
const (
	maxDetail  = 512
	maxBlocks  = 1 << 20 // blocks of a registration, all groups together
	maxSettled = 1 << 12 // numbers of a FLOOR
	maxBeats   = 1 << 12 // lines of a BEAT
	maxTokens  = transfer.MaxTokens
	maxName    = plan.MaxName // bytes of the name of an agent or an engine
	maxExtent  = plan.MaxExtent
	maxGroups  = metadata.MaxGroups
)
