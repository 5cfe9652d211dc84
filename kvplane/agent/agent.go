// Package agent is one rank's end of the KV plane. An Agent is one goroutine, the owner: it alone calls the transport and the two state
// machines of package core. It turns calls of the engine, packets and ends of writes into events, and carries the effects out. Everything
// else that an agent does is in the transport, the plan (package plan) and the messages (package wire).
//
// Engines use Do and Collect (collect.go, package sched), and Gone. Expect, Offer, Queue and Abandon are the single calls that Do is made of.
//
// Read a transfer in this order, with internal/core/core.go beside it, as between any two steps the state machines decide: owner.go (the loop:
// engineCall takes calls, deliver gives events to a state machine), engine_calls.go (Expect and Offer become events), peers.go and host.go (the
// peer's records are looked up), connections.go (it is connected), execute.go (effects become messages), verify.go (messages of peers are
// verified), post.go (a write is planned and posted), owner.go again (its end), engine_calls.go (report), tail.go (what stays old in the last
// block), counts.go (the report is counted).
//
// A cancel: engine_calls.go (abandon), then package core decides, execute.go sends CANCEL, and on P owner.go takes it. A write that was posted is
// never aborted: P answers that it is writing until the write ends. D's blocks are reusable when core says so (Consumer.Check); quarantine.go
// only counts them, and stuck.go logs what does not end. Lost peers: connections.go, peers.go (gone), execute.go (fence), liveness.go (proof of
// death). Peers that are not used any more: forget.go. The end of an agent: closing.go. How the owner sleeps: idle.go.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// ErrSuperseded is what a Directory's error wraps when it knows of a newer generation of the engine that was asked for.
var ErrSuperseded = errors.New("a newer generation of the engine is known")

// Directory finds the records of a peer. The agent asks from a goroutine of its own, once per peer however many
// transfers wait for the answer. An error fails all of them and is not cached.
type Directory interface {
	// Engine returns the records of all ranks of exactly this incarnation.
	Engine(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error)
}

// Config is what an Agent is made from.
type Config struct {
	// Self is this rank's record without Agent, Transport, Blob, Doorbell, Process and Key, which Open fills in.
	Self metadata.Record
	// Memory is what peers may write into and what is written from. It holds every region of Self.Layout.
	Memory    []memory.Region
	Transport transport.Transport // owned by the agent from Open on, closed with it
	Directory Directory
	// Report is called on the agent's goroutine. It must neither block nor call the agent's Close. Nil: reports wait for
	// Collect.
	Report func(kvplane.Report)
	// Notify is called on the agent's goroutine when there is something for Collect again. It must neither block nor
	// call the agent's Close. Nil: no call.
	Notify func()
	Times  kvplane.Times
	Allow  plan.Allow
	// SerialStarts says that a peer's newer generation proves that the older one's process is gone, as under a
	// supervisor that reaps an engine before it starts the next. Without it only Agent.Gone is proof, and what this
	// process sees of one on the same host.
	SerialStarts bool
	Log          *slog.Logger // nil logs nothing
}

// Agent is one rank's end of the plane. Its methods are safe for concurrent use and do not wait for the network.
type Agent struct {
	owner   *owner
	lookups *lookups
	cancel  context.CancelFunc
	done    chan struct{} // closed when the owner has ended
	record  metadata.Record
	err     error // of the transport's end; after done
}

// Open starts the agent: it registers the memory, listens, and runs until Close.
func Open(cfg Config) (*Agent, error) {
	cfg.Times = cfg.Times.WithDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	self := cfg.Self
	self.Version, self.Connector, self.ConnectorVersion = metadata.RecordVersion, "kvplane", strconv.Itoa(wire.Version)
	self.Agent, self.Transport = self.ID()+"/"+self.Rank.String(), cfg.Transport.Name()
	self.Process = procid.Self()
	if self.EngineID == "" {
		self.EngineID = self.ID()
	}
	if len(self.Agent) > plan.MaxName {
		return nil, fmt.Errorf("kvplane: agent name of %d bytes; want at most %d", len(self.Agent), plan.MaxName)
	}
	if err := plan.Check(self); err != nil {
		return nil, err
	}
	for _, r := range self.Layout.Regions {
		if !slices.ContainsFunc(cfg.Memory, func(m memory.Region) bool {
			return r.Base >= m.Base && r.Base-m.Base <= m.Length && r.Length <= m.Length-(r.Base-m.Base)
		}) {
			return nil, fmt.Errorf("kvplane: agent %s: layer %d lies outside of the memory", self.Agent, r.Layer)
		}
	}
	var err error
	var agree transport.Agreement
	if self.Key, agree, err = transport.NewKey(); err != nil {
		return nil, fmt.Errorf("kvplane: agent %s: %w", self.Agent, err)
	}
	transport.Introduce(cfg.Transport, self.Key, agree)
	if self.Blob, self.Doorbell, err = cfg.Transport.Open(self.Agent, cfg.Memory); err != nil {
		return nil, fmt.Errorf("kvplane: agent %s: %w", self.Agent, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := newOwner(ctx, cfg, self, host{now: clock(time.Now()), agree: agree, exited: procid.Exited})
	l := &lookups{ctx: ctx, directory: cfg.Directory, timeout: cfg.Times.Lookup, post: o.enqueue}
	o.host.ask = l.ask
	a := &Agent{cancel: cancel, done: make(chan struct{}), owner: o, lookups: l, record: self}
	go func() {
		defer close(a.done)
		o.run()
		a.err = o.closeTransport()
	}()
	return a, nil
}

// Record returns the rank's complete record, for publishing. The caller sets Published, Expires and the signature.
func (a *Agent) Record() metadata.Record { return a.record }

// Expect asks every producer rank of the peer to write into reserved blocks. It ends in Ready, or in Failed and Reusable.
// An id serves once: a second Expectation is ignored while the first one lives, and ends in Failed and Reusable while its id is remembered.
func (a *Agent) Expect(e kvplane.Expectation) { a.owner.engineCall(func() { a.owner.expect(&e) }) }

// Queue says that a transfer will be expected later, when there is room for it: P is asked to keep it meanwhile. Nothing
// is reserved for it. It ends when it is expected or abandoned, in both Failed and Reusable, without Groups, when P does
// not keep it any more, and likewise Times.Queue after the last call: calling it again says that it is still wanted.
func (a *Agent) Queue(id kvplane.TransferID, peer metadata.Incarnation) {
	a.owner.engineCall(func() { a.owner.queue(id, peer) })
}

// Offer makes finished blocks available to the peer. It ends in Sent; a second Offer under the same id is ignored.
func (a *Agent) Offer(o kvplane.Offer) { a.owner.engineCall(func() { a.owner.offer(&o) }) }

// Abandon gives a transfer up on this rank, whichever side it is on, known already or not. On D it leads to Failed
// and Reusable unless the rank was Ready; on P an Offer made before or after it still ends in Sent.
func (a *Agent) Abandon(id kvplane.TransferID, why string) {
	a.owner.engineCall(func() { a.owner.abandon(id, why) })
}

// Gone says that all processes of this run of an engine are proven dead: reaped, or their hosts reset. Silence is no proof.
func (a *Agent) Gone(inc metadata.Incarnation) {
	a.owner.engineCall(func() { a.owner.gone(inc, true) })
}

// Status counts what the agent holds and has seen. After Close it is zero.
func (a *Agent) Status() Status {
	answer := make(chan Status, 1)
	if !a.owner.engineCall(func() { answer <- a.owner.status() }) {
		return Status{}
	}
	select {
	case s := <-answer:
		return s
	case <-a.done:
		return Status{}
	}
}

// Close ends the agent and its transport and waits for their goroutines. Whatever is under way fails with reason
// Closing and is reported before Close returns: Failed, Sent, and Reusable where nothing can land any more. P says
// BYE, D cancels its write requests; both wait for what is in progress, at most 1 s and the transport's own
// end. Safe to call twice.
func (a *Agent) Close() error {
	a.owner.close()
	<-a.done
	a.cancel()
	a.lookups.tasks.Wait()
	return a.err
}

// Status is a snapshot of an agent's counts.
type Status struct {
	Offers        int                   `json:"offers"`         // P: transfers whose blocks are held
	WriteRequests int                   `json:"write_requests"` // P: write requests that are remembered, ended ones included
	Writing       int                   `json:"writing"`        // P: writes in progress
	Stuck         map[string]int        `json:"stuck"`          // P: of these, for more than 30 s, by engine id
	Expectations  int                   `json:"expectations"`   // D: transfers not settled yet
	Quarantined   map[string]Quarantine `json:"quarantined"`    // D: what a peer may still write though its transfer has failed, by engine id
	HeldBlocks    int                   `json:"held_blocks"`    // P: blocks of Offers
	PinnedBlocks  int                   `json:"pinned_blocks"`  // D: blocks of Expectations before Ready or Reusable
	Peers         int                   `json:"peers"`          // known peer ranks
	Polls         uint64                `json:"polls"`          // calls of Transport.Poll
	Wakeups       uint64                `json:"wakeups"`        // times the owner went from waiting to working
	Seen          Seen                  `json:"seen"`           // from something being there to its being taken in
	SlowPosts     uint64                `json:"slow_posts"`     // writes that took more than 200 ms to plan and to post
	Written       uint64                `json:"written"`        // writes that ended well
	WrittenBytes  uint64                `json:"written_bytes"`  // bytes of these
	Failed        map[string]uint64     `json:"failed"`         // P: writes refused or ended in an error, by reason
	Served        map[string]uint64     `json:"served"`         // P: transfers that came to Sent, by reason; "done" is all is well
	Received      map[string]uint64     `json:"received"`       // D: transfers that came to Ready ("done") or Failed, by reason
	Messages      uint64                `json:"messages"`       // messages taken in
	Dropped       map[string]int        `json:"dropped"`        // events without effect, by why
}
