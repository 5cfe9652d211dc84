// Package transport has the interface over which an agent sends messages and posts writes, and what some implementations can do beyond it
// (Fencer, Keyed, Preparer). It moves nothing itself. The agent's owner is the only caller: execute.go sends, post.go writes, owner.go polls.
//
// The implementations are transport/tcp and transport/nixltransport; transport/byname opens the one that a configuration names. The tests of
// this package, which run on each of them, say what an implementation must hold.
package transport

import (
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"time"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// Why a transport refuses a call; test with errors.Is.
var (
	ErrClosed      = errors.New("transport is closed")
	ErrKnownPeer   = errors.New("peer is connected already")
	ErrUnknownPeer = errors.New("peer is not connected")
	ErrPeerLost    = errors.New("peer is lost") // until Disconnect and a new Connect
	ErrBusy        = errors.New("too much is queued for the peer")
	ErrNoKey       = errors.New("no key for authenticated messages")
)

// MaxPeers bounds the peers that one agent is connected to.
const MaxPeers = 4096

// The owner of a polled transport spins for Attention after something has happened: an answer, or the engine's next word,
// mostly comes within that. While something is under way it then sleeps only for moments, for Dozing in all. A peer's owner
// need not be woken while it does either.
const (
	Attention = 400 * time.Microsecond
	Dozing    = 25 * time.Millisecond
)

// Transport moves bytes and messages for one agent. Only the agent's goroutine calls it, and no method but Open and
// Close may block on a peer. Messages may be lost, doubled and reordered; a write either lands whole before its
// notification is seen, or ends in an error.
type Transport interface {
	// Name is what records and logs call it: "tcp", "nixl".
	Name() string
	// Open registers the memory under the agent's name and starts to listen.
	// It returns what peers must load and the address that wakes this side ("" if Blob suffices).
	Open(agent string, memory []memory.Region) (blob []byte, doorbell string, err error)
	// Connect makes a peer known by its record; a peer known already under this agent name is an error.
	Connect(peer metadata.Record) error
	// Disconnect forgets a peer. No write to it may be in progress.
	Disconnect(agent string)
	// Send queues one message of at most MaxMessage bytes for a peer. nil is not a promise of delivery.
	Send(agent string, body []byte) error
	// Write posts one write; its end arrives from Poll under id. notify is delivered to the peer as a message after
	// the last byte has landed, and only if all have. ranges and notify are not kept after the call returns.
	// An error means that nothing was posted.
	Write(agent string, id uint64, ranges []transfer.Range, notify []byte) error
	// Poll takes in what has come and appends it to out. It never blocks.
	Poll(out []Incoming) []Incoming
	// Wake receives a value when Poll may have something for an owner that is asleep. Values may be spurious or merged.
	Wake() <-chan struct{}
	// Polled says that Poll makes progress only when called (NIXL without its thread), so an owner with anything
	// outstanding must not sleep.
	Polled() bool
	// Close ends everything; it waits for the transport's goroutines and is safe to call twice.
	Close() error
}

// Fencer is a Transport that can refuse a peer's bytes, whatever state the peer is in. NIXL cannot.
type Fencer interface {
	// Fence makes sure that after it has returned nil nothing of what the agent has written so far lands any more, nor
	// anything that it writes until Admit. Its messages are still taken in. It does not wait for the peer.
	Fence(agent string) error
	// Admit lets what the agent writes from now on land again.
	Admit(agent string)
	// Forget drops what is remembered of a fenced agent that is never connected to again, as its run is superseded. Nothing
	// that it writes ever lands.
	Forget(agent string)
}

// Keyed is a Transport that asks every peer to prove its name with the private half of its record's key.
type Keyed interface {
	// SetKey is called before Open with the public half of this agent's key, and what computes the secret that it
	// shares with the holder of another one. Without it names are believed.
	SetKey(public []byte, agree Agreement)
}

// Agreement computes the secret that an agent shares with the holder of a public key, as ecdh does.
type Agreement func(public []byte) (secret []byte, err error)

// Introduce gives a transport that asks for one the key of the agent that it is opened for.
func Introduce(t Transport, public []byte, agree Agreement) {
	if k, ok := t.(Keyed); ok {
		k.SetKey(public, agree)
	}
}

// MaxMessage bounds a message, in bytes.
const MaxMessage = 1 << 20

// Incoming is one thing that Poll took in.
type Incoming struct {
	Kind  IncomingKind
	Agent string // the peer: who sent the message, to whom the write went, who was lost
	ID    uint64 // WriteEnded: the id given to Write
	Body  []byte // MessageReceived: owned by the receiver
	Err   error  // WriteEnded: nil if every byte has landed; PeerLost: why
	// At is when the transport took it in by itself, or when a doorbell announced it. Zero: nobody knows.
	At time.Time
}

// IncomingKind says what an Incoming is.
type IncomingKind uint8

// The kinds of Incoming.
const (
	MessageReceived IncomingKind = iota + 1
	WriteEnded
	PeerLost
)

// String names the kind.
func (k IncomingKind) String() string {
	switch k {
	case MessageReceived:
		return "message"
	case WriteEnded:
		return "write ended"
	case PeerLost:
		return "peer lost"
	}
	return "unknown"
}

// Preparer is a Transport that can make a peer's memory ready once, so that a write names places in two lists instead
// of describing them.
type Preparer interface {
	// Prepare makes the places of both sides ready for WritePrepared to a connected peer, in the course of later calls
	// of Poll, and says whether they are. Until then, which may be for ever, there is Write. Only the first call after
	// Connect counts, so it may be made before every write. The slices are not changed, nor may the caller change them.
	Prepare(agent string, local, remote []transfer.StridedRegion) bool
	// WritePrepared is Write of place local[i] to place remote[i]. Neither list nor notify is kept.
	WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error
}

// NewKey makes the X25519 key of one run of an agent. The private part stays in agree.
func NewKey() (public []byte, agree Agreement, err error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	return private.PublicKey().Bytes(), func(public []byte) ([]byte, error) {
		peer, err := ecdh.X25519().NewPublicKey(public)
		if err != nil {
			return nil, err
		}
		return private.ECDH(peer) // refuses points that give everybody the same secret
	}, nil
}
