package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// peerID is the agent's number for one peer rank, that is for one session.
type peerID int32

// event is one thing that happens to a producer or a consumer.
type event struct {
	at     time.Duration // since the agent's start
	kind   eventKind
	peer   peerID
	inc    metadata.Incarnation // session, gone, offer: whose
	seq    uint64
	id     kvplane.TransferID
	msg    *wire.Message // registered, cancelled, floor, status
	offer  *kvplane.Offer
	expect *kvplane.Expectation
	links  []linkTo // producers
	owed   []peerID // consumers
	reason kvplane.Reason
	detail string
	tokens int
	budget int  // registered: blocks that the registrations of this session may have together; 0: any number
	down   bool // of a peer's message: it cannot be reached now
	proof  bool // gone: the process is known to be dead, not only void
	fenced bool // gone: and nothing of it lands any more
}

// linkTo is one producer of a transfer.
type linkTo struct {
	peer   peerID
	writes bool
	down   bool // it cannot be reached now
}

type eventKind uint8

const (
	evUp          eventKind = iota + 1 // a peer can be reached
	evDown                             // the connection to a peer is lost
	evUnreachable                      // a peer cannot be reached and will not be
	evGone                             // an incarnation is void, or one agent of it, if a peer is named
	evRegister                         // P: REGISTER
	evCancel                           // P: CANCEL
	evFloor                            // P: FLOOR
	evOffer                            // P: the engine has finished a request
	evConsumers                        // P: whom an offer owes a completion
	evUnpaired                         // both: the peer's records cannot be had
	evAbandon                          // both: the engine gives a transfer up
	evRefused                          // P: the plan refuses, or posting failed; nothing was posted
	evNothing                          // P: there is nothing to write
	evWritten                          // P: a write has ended well
	evBroken                           // P: a write has ended in an error
	evExpect                           // D: the engine has reserved blocks
	evProducers                        // D: whom to register with
	evStatus                           // D: STATUS or DONE
	evDrained                          // D: whatever a dead writer had sent has been taken in
	evFenced                           // D: nothing that a peer writes lands until it is admitted again
	evBeat                             // P: BEAT
	evQueue                            // D: the engine will expect a transfer later
	evBeatAck                          // D: the answer to a BEAT
	evBye                              // D: BYE
	evClose                            // both: the agent ends in good order
	evTick                             // time has passed
)

var eventNames = [...]string{
	"none", "up", "down", "unreachable", "gone", "register", "cancel", "floor", "offer", "consumers", "unpaired",
	"abandon", "refused", "nothing", "written", "broken", "expect", "producers", "status", "drained", "fenced",
	"beat", "queue", "beatack", "bye", "close", "tick",
}

func (k eventKind) String() string { return eventNames[k] }

// effect is one thing that the owner of a producer or a consumer must do.
type effect struct {
	do     action
	peer   peerID
	seq    uint64
	id     kvplane.TransferID
	status wire.Status
	report kvplane.ReportKind
	reason kvplane.Reason
	detail string
	tokens int
	k, n   int
	drop   drop
	wait   time.Duration        // register: what is left of D's patience
	beats  []wire.Beat          // beat, beat-ack
	msg    *wire.Message        // post: the registration
	offer  *kvplane.Offer       // post, report on P
	expect *kvplane.Expectation // register, report on D
}

type action uint8

const (
	doStatus   action = iota + 1 // send a STATUS
	doRegister                   // send a REGISTER
	doCancel                     // send a CANCEL
	doFloor                      // send a FLOOR, unless another message to this peer carries it
	doPair                       // try to reach a peer
	doSeek                       // find out again whom a queued transfer hears from
	doPost                       // plan and post the write of a registration
	doReport                     // tell the engine
	doDrain                      // take in all that a dead writer may have sent, twice, then say drained
	doFence                      // let nothing of a peer land any more, if the transport can, then say fenced
	doAdmit                      // let a fenced peer write again
	doBeat                       // send a BEAT
	doBeatAck                    // send its answer
	doBye                        // send a BYE
	doDrop                       // count an event without effect
)

var actionNames = [...]string{
	"none", "send-status", "send-register", "send-cancel", "send-floor", "pair", "seek", "post", "report", "drain", "fence", "admit",
	"send-beat", "send-beat-ack", "send-bye", "drop",
}

func (a action) String() string { return actionNames[a] }

// drop says why an event had no effect.
type drop uint8

const (
	dropState    drop = iota + 1 // the state has no row for it
	dropUnknown                  // nobody waits for it
	dropStranger                 // from a peer that has no say in it
	dropRepeat                   // the same once more
	dropFloor                    // settled long ago
	dropConflict                 // contradicts what was said before
	dropFull                     // a table is at its bound
	dropMalformed
	dropForeign // for another agent, or of another generation
	dropWaiting // too many messages of unknown senders
	dropForged  // not said by the agent that it names
	drops       // how many there are
)

var dropNames = [...]string{
	"none", "state", "unknown", "stranger", "repeat", "floor", "conflict", "full", "malformed", "foreign", "waiting", "forged",
}

func (d drop) String() string { return dropNames[d] }

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
