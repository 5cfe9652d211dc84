package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// peer is one rank of another engine, known by its record.
type peer struct {
	id         core.PeerID
	record     metadata.Record
	plan       *plan.Pair // from here to it; nil until something was planned
	connected  bool
	gone       bool
	writes     int           // in progress
	attempts   int           // connections in a row that were lost before a message came
	retry      time.Duration // when to connect again; 0 is not
	settled    []uint64      // numbers for the next ACK
	ackDue     bool          // it gets an ACK at the end of this pass
	session    *wire.Session // nil until there was something to sign or to verify
	sessionErr error         // why there is no session and never will be
	room       []int         // blocks of its record, by group; nil until its first write request
	admitted   time.Duration // when a fence around it was last opened; 0 is never
	used       time.Duration // when it was last heard or sent something
}

func (p *peer) Due() time.Duration { return p.retry }

// engine is what is known of another engine.
type engine struct {
	peers        []*peer // in the order of its ranks; nil while it is looked up
	records      []metadata.Record
	expected     []plan.Producer      // the producers of this rank; follows from the records, nil until it was asked for
	owed         []metadata.Record    // its ranks that this rank owes a write; likewise
	tails        []*plan.Pair         // one of each of its stages whose blocks are smaller than this rank's; likewise
	tailed       bool                 // tails was asked for
	expects      []kvplane.TransferID // these three wait while it is looked up, and are empty afterwards
	offers       []kvplane.TransferID
	heldMessages []heldMessage

	asked       time.Duration // when the directory last knew of it
	suspectedAt time.Duration // when it was last asked whether the engine was started anew
}

// heldMessage is a message of an agent whose record is not here yet.
type heldMessage struct {
	at     time.Duration
	packet wire.Packet
}

// Bounds on what unknown senders may make an agent remember.
const (
	maxHeldMessages = 64
	holdTime        = time.Second
)

// resolve finds an engine, or begins to look it up; its peers are nil until resolved has them.
func (o *owner) resolve(inc metadata.Incarnation) (*engine, error) {
	if e := o.engines[inc]; e != nil {
		return e, nil
	}
	if o.newest[inc.Engine].least > inc.Generation {
		return nil, fmt.Errorf("kvplane: %s: %w", inc.ID(), ErrSuperseded)
	}
	if inc == o.self.Incarnation {
		return nil, fmt.Errorf("kvplane: %s is this engine", inc.ID())
	}
	if err := o.makeRoom(); err != nil {
		return nil, err
	}
	e := &engine{}
	o.engines[inc] = e
	o.collected.pendingChanged = true
	o.lookup(inc, func(records []metadata.Record, err error) { o.resolved(inc, records, err) })
	return e, nil
}

// resolved takes the answer of a look-up and goes on with everything that waited for it. An error is not cached.
func (o *owner) resolved(inc metadata.Incarnation, records []metadata.Record, err error) {
	e := o.engines[inc]
	if e == nil || e.peers != nil {
		return // superseded meanwhile, and failed already
	}
	o.collected.pendingChanged = true
	if err == nil && o.newest[inc.Engine].least > inc.Generation {
		err = ErrSuperseded
	}
	for _, r := range records {
		if err == nil && o.agents[r.Agent] != nil { // what is known under a name is never another's
			err = fmt.Errorf("kvplane: the records of %s name agent %s, which is known already", inc.ID(), r.Agent)
		}
	}
	if err != nil {
		delete(o.engines, inc)
		o.log.Warn("kvplane: records of a peer", "peer", inc.ID(), "err", err)
		for _, id := range e.expects {
			o.fail(o.stepConsumer, id, err)
		}
		for _, id := range e.offers {
			o.fail(o.stepProducer, id, err)
		}
		o.heldMessages -= len(e.heldMessages)
		if errors.Is(err, ErrSuperseded) {
			o.gone(inc, o.cfg.SerialStarts)
		}
		return
	}
	known := o.newest[inc.Engine].least
	o.raise(inc.Engine, inc.Generation)
	if known < inc.Generation {
		for _, other := range o.olderThan(inc) {
			o.gone(other, o.cfg.SerialStarts)
		}
	}
	e.records, e.asked = records, o.now()
	for _, r := range records {
		e.peers = append(e.peers, o.addPeer(r))
	}
	o.serveAll(e)
}

// serveAll goes on with all that has waited for an engine's records.
func (o *owner) serveAll(e *engine) {
	o.collected.pendingChanged = true
	expects, offers := e.expects, e.offers
	e.expects, e.offers = nil, nil
	for _, id := range expects {
		o.producers(id, e)
	}
	for _, id := range offers {
		o.consumers(id, e)
	}
	o.receiveHeld(e)
}

// addPeer makes a rank known by its record.
func (o *owner) addPeer(r metadata.Record) *peer {
	o.lastPeer++
	p := &peer{id: o.lastPeer, record: r}
	o.peers[p.id] = p
	o.agents[r.Agent] = p
	if past, ok := o.newest[r.Incarnation.Engine].past[r.Agent]; ok {
		o.producer.ResumeSession(p.id, r.Incarnation, past)
	}
	return p
}

// receiveHeld takes in the messages that have waited for an engine's records.
func (o *owner) receiveHeld(e *engine) {
	messages := e.heldMessages
	e.heldMessages = nil
	o.heldMessages -= len(messages)
	for _, m := range messages {
		if o.now()-m.at <= holdTime {
			o.receive(&m.packet)
		}
	}
}

// fail sends EvUnpaired: the records of a transfer's peer cannot be had.
func (o *owner) fail(step func(core.Event), id kvplane.TransferID, err error) {
	reason := kvplane.Handshake
	var refusal *plan.Refusal
	switch {
	case errors.As(err, &refusal):
		reason = reasonOf(refusal)
	case errors.Is(err, ErrSuperseded):
		reason = kvplane.Superseded
	case errors.Is(err, transport.ErrNoKey):
		reason = kvplane.NoKey
	}
	step(core.Event{Kind: core.EvUnpaired, ID: id, Reason: reason, Detail: err.Error()})
}

// olderThan lists the known incarnations of an engine before one.
func (o *owner) olderThan(inc metadata.Incarnation) []metadata.Incarnation {
	older := map[metadata.Incarnation]bool{}
	add := func(other metadata.Incarnation) {
		if other.Engine == inc.Engine && other.Generation < inc.Generation {
			older[other] = true
		}
	}
	for other := range o.engines {
		add(other)
	}
	return slices.SortedFunc(maps.Keys(older), compareIncarnations)
}

// gone makes an incarnation void: nothing is sent to it and nothing heard from it any more. Where the
// transport can fence, nothing of it lands any more either.
func (o *owner) gone(inc metadata.Incarnation, proof bool) {
	o.collected.pendingChanged = true
	o.raise(inc.Engine, inc.Generation+1)
	for _, older := range o.olderThan(inc) { // void with it, though nothing proves that their processes are gone
		o.gone(older, o.cfg.SerialStarts)
	}
	records := o.recordsOf(inc)
	proof = proof || o.dead(records)
	fenced := o.fenceAll(records)
	if e := o.engines[inc]; e != nil {
		delete(o.engines, inc)
		for _, p := range e.peers { // first of all, so that nothing that follows is said to it
			p.gone, p.retry = true, 0
		}
		for _, id := range e.expects {
			o.fail(o.stepConsumer, id, ErrSuperseded)
		}
		for _, id := range e.offers {
			o.fail(o.stepProducer, id, ErrSuperseded)
		}
		o.heldMessages -= len(e.heldMessages)
		for _, p := range e.peers {
			o.release(p)
		}
	}
	o.step(core.Event{Kind: core.EvGone, Inc: inc, Proof: proof, Fenced: fenced})
	switch {
	case proof:
		delete(o.liveness.unprovenDead, inc)
	case records != nil:
		o.liveness.unprovenDead[inc] = records
		o.checkLivenessWithin(o.cfg.Times.Resend)
	}
	if fenced {
		o.forgetAll(records)
	}
}

// fenceAll fences the ranks of an engine and says whether that was possible.
func (o *owner) fenceAll(records []metadata.Record) bool {
	f, ok := o.cfg.Transport.(transport.Fencer)
	if !ok {
		return false
	}
	for _, r := range records {
		if err := f.Fence(r.Agent); err != nil {
			o.log.Warn("kvplane: fence", "peer", r.Agent, "err", err)
			return false
		}
	}
	return len(records) > 0
}

// forgetAll has the transport forget ranks that it has fenced and that are never connected to again.
func (o *owner) forgetAll(records []metadata.Record) {
	f, ok := o.cfg.Transport.(transport.Fencer)
	if !ok {
		return
	}
	for _, r := range records {
		f.Forget(r.Agent)
	}
}

// release forgets a peer that is gone, as soon as no write to it is in progress.
func (o *owner) release(p *peer) {
	if !p.gone || p.writes > 0 {
		return
	}
	if p.connected {
		o.cfg.Transport.Disconnect(p.record.Agent)
		p.connected = false
	}
	delete(o.peers, p.id)
	if o.agents[p.record.Agent] == p {
		delete(o.agents, p.record.Agent)
	}
}

// producers gives the consumer the list of a transfer's producers (EvProducers).
func (o *owner) producers(id kvplane.TransferID, e *engine) {
	expected, err := o.expected(e)
	if err != nil {
		o.fail(o.stepConsumer, id, err)
		return
	}
	ev := core.Event{Kind: core.EvProducers, ID: id}
	for _, x := range expected {
		p := o.agents[x.Record.Agent]
		if err := o.connect(p); err != nil {
			o.fail(o.stepConsumer, id, err)
			return
		}
		ev.Links = append(ev.Links, core.Link{Peer: p.id, Writes: x.Writes, Down: !p.connected})
	}
	o.stepConsumer(ev)
}

// expected returns the producers of this rank in transfers with an engine.
func (o *owner) expected(e *engine) ([]plan.Producer, error) {
	var err error
	if e.expected == nil {
		e.expected, err = plan.Producers(e.records, o.self, o.cfg.Allow)
	}
	return e.expected, err
}

// consumers gives the producer the list of consumers that an offer owes a write (EvConsumers).
func (o *owner) consumers(id kvplane.TransferID, e *engine) {
	if e.owed == nil {
		var err error
		if e.owed, err = plan.Consumers(o.self, e.records, o.cfg.Allow); err != nil {
			o.fail(o.stepProducer, id, err)
			return
		}
	}
	ev := core.Event{Kind: core.EvConsumers, ID: id}
	for _, r := range e.owed {
		p := o.agents[r.Agent]
		if err := o.connect(p); err != nil {
			o.fail(o.stepProducer, id, err)
			return
		}
		ev.Owed = append(ev.Owed, p.id)
	}
	o.stepProducer(ev)
}
