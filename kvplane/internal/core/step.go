package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// PeerID is the agent's number for one peer rank, that is for one session.
type PeerID int32

// Event is one thing that happens to a producer or a consumer.
type Event struct {
	At     time.Duration // since the agent's start
	Kind   EventKind
	Peer   PeerID
	Inc    metadata.Incarnation // session, gone, offer: whose
	Seq    uint64
	ID     kvplane.TransferID
	Msg    *wire.Message // write request, cancel, ack, status
	Offer  *kvplane.Offer
	Expect *kvplane.Expectation
	Links  []Link   // producers
	Owed   []PeerID // consumers
	Reason kvplane.Reason
	Detail string
	Tokens int
	Budget int  // write request: blocks that the write requests of this session may have together; 0: any number
	Down   bool // of a peer's message: it cannot be reached now
	Proof  bool // gone: the process is known to be dead, not only void
	Fenced bool // gone: and nothing of it lands any more
}

// Link is one producer of a transfer.
type Link struct {
	Peer   PeerID
	Writes bool
	Down   bool // it cannot be reached now
}

// EventKind says what an Event is.
type EventKind uint8

const (
	EvUp           EventKind = iota + 1 // a peer can be reached
	EvDown                              // the connection to a peer is lost
	EvUnreachable                       // a peer cannot be reached and will not be
	EvGone                              // an incarnation is void
	EvWriteRequest                      // P: WRITE_REQUEST
	EvCancel                            // P: CANCEL
	EvAck                               // P: ACK
	EvOffer                             // P: the engine has finished a request
	EvConsumers                         // P: which consumers an offer owes a write
	EvUnpaired                          // both: the peer's records cannot be had
	EvAbandon                           // both: the engine gives a transfer up
	EvRefused                           // P: the plan refuses, or posting failed; nothing was posted
	EvNothing                           // P: there is nothing to write
	EvWritten                           // P: a write has ended well
	EvBroken                            // P: a write has ended in an error
	EvExpect                            // D: the engine has reserved blocks
	EvProducers                         // D: which producers to send write requests to
	EvStatus                            // D: STATUS or DONE
	EvFlushed                           // D: the flush after DoFlush is over
	EvFenced                            // D: nothing that a peer writes lands until it is admitted again
	EvHeartbeat                         // P: HEARTBEAT
	EvQueue                             // D: the engine will expect a transfer later
	EvHeartbeatAck                      // D: the answer to a HEARTBEAT
	EvBye                               // D: BYE
	EvClose                             // both: the agent ends in good order
	EvTick                              // time has passed
)

var eventNames = [...]string{
	"none", "up", "down", "unreachable", "gone", "write-request", "cancel", "ack", "offer", "consumers", "unpaired",
	"abandon", "refused", "nothing", "written", "broken", "expect", "producers", "status", "flushed", "fenced",
	"heartbeat", "queue", "heartbeat-ack", "bye", "close", "tick",
}

// String names the kind.
func (k EventKind) String() string { return eventNames[k] }

// Effect is one thing that the owner of a producer or a consumer must do.
type Effect struct {
	Do         Action
	Peer       PeerID
	Seq        uint64
	ID         kvplane.TransferID
	Status     wire.Status
	Report     kvplane.ReportKind
	Reason     kvplane.Reason
	Detail     string
	Tokens     int
	K, N       int // report: how many consumers or writers are done, of how many
	Unanswered int // write request, cancel: how often it was sent at the longest pause without an answer
	Drop       Drop
	Wait       time.Duration        // write request: what is left of D's patience
	Lines      []wire.HeartbeatLine // heartbeat, heartbeat-ack
	Msg        *wire.Message        // post: the write request
	Offer      *kvplane.Offer       // post, report on P
	Expect     *kvplane.Expectation // write request, report on D
}

// Action says what an Effect has the owner do.
type Action uint8

const (
	DoStatus       Action = iota + 1 // send a STATUS
	DoWriteRequest                   // send a WRITE_REQUEST
	DoCancel                         // send a CANCEL
	DoAck                            // send an ACK at the end of the pass, one for all numbers of a peer
	DoPair                           // plan the next attempt to connect
	DoPost                           // plan and post the write of a write request
	DoReport                         // tell the engine
	DoFlush                          // poll twice, so that all bytes of an ended writer have landed; then EvFlushed
	DoFence                          // refuse the bytes of a peer, if the transport can; then EvFenced
	DoAdmit                          // let a fenced peer write again
	DoHeartbeat                      // send a HEARTBEAT
	DoHeartbeatAck                   // send its answer
	DoBye                            // send a BYE
	DoDrop                           // count an event without effect
)

var actionNames = [...]string{
	"none", "send-status", "send-write-request", "send-cancel", "send-ack", "pair", "post", "report", "flush", "fence", "admit",
	"send-heartbeat", "send-heartbeat-ack", "send-bye", "drop",
}

// String names the action.
func (a Action) String() string { return actionNames[a] }

// Drop says why an event had no effect.
type Drop uint8

const (
	dropState    Drop = iota + 1 // the state has no row for it
	DropUnknown                  // nothing waits for it
	DropStranger                 // from a peer that has no say in it
	DropRepeat                   // the same once more
	DropSettled                  // settled long ago
	dropConflict                 // contradicts what was said before
	dropFull                     // a table is at its bound
	DropMalformed
	DropForeign // for another agent, or of another generation
	DropWaiting // too many messages of unknown senders
	DropForged  // not said by the agent that it names
	Drops       // how many there are
)

var dropNames = [...]string{
	"none", "state", "unknown", "stranger", "repeat", "settled", "conflict", "full", "malformed", "foreign", "waiting", "forged",
}

func (d Drop) String() string { return dropNames[d] }

// backoff is the pause before a message is sent again.
type backoff struct {
	pause, longest time.Duration
	rounds         int // at the longest pause
}

func newBackoff(t kvplane.Times) backoff { return backoff{pause: t.Resend, longest: t.Pause} }

func (b *backoff) next() time.Duration {
	p := b.pause
	if p >= b.longest {
		b.rounds++
	}
	b.pause = min(2*b.pause, b.longest)
	return p
}
