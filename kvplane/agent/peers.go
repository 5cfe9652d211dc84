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
	id           core.PeerID
	record       metadata.Record
	plan         *plan.Pair // from here to it; nil until something was planned
	connected    bool
	gone         bool
	maybeRebuilt bool          // its connection was lost, and nothing was heard of it since: it may have been rebuilt
	writes       int           // in progress
	attempts     int           // connections in a row that were lost before a message came
	retry        time.Duration // when to connect again; 0 is not
	suspectedAt  time.Duration // when its engine was last looked up again
	settled      []uint64      // numbers for the next ACK
	ackDue       bool          // it gets an ACK at the end of this pass
	session      *wire.Session // nil until there was something to sign or to verify
	sessionErr   error         // why there is no session and never will be
	room         []int         // blocks of its record, by group; nil until its first write request
	admitted     time.Duration // when a fence around it was last opened; 0 is never
	used         time.Duration // when it was last heard or sent something
}

func (p *peer) Due() time.Duration { return p.retry }

// engine is what is known of another engine.
type engine struct {
	peers    []*peer // in the order of its ranks; nil while it is looked up
	records  []metadata.Record
	expected []plan.Producer   // whom this rank hears from; follows from the records, nil until it was asked for
	owed     []metadata.Record // to whom it owes a completion; likewise
	tails    []*plan.Pair      // one of each of its stages whose blocks are smaller than this rank's; likewise
	tailed   bool              // tails was asked for
	expects  []kvplane.TransferID
	offers   []kvplane.TransferID
	held     []heldMessage

	refreshing  bool          // a look-up of its ranks' newest records is under way
	refreshedAt time.Duration // when the last one began
	asked       time.Duration // when the directory last knew of it
}

// heldMessage is a message of an agent whose record is not here yet.
type heldMessage struct {
	at     time.Duration
	letter wire.Packet
}

// Bounds on what strangers may make an agent remember.
const (
	maxHeldMessages = 64
	holdTime        = time.Second
)

// resolve finds an engine, or begins to look it up; its peers are nil until resolved has them.
func (w *owner) resolve(inc metadata.Incarnation) (*engine, error) {
	if e := w.engines[inc]; e != nil {
		return e, nil
	}
	if w.newest[inc.Engine].least > inc.Generation {
		return nil, fmt.Errorf("kvplane: %s: %w", inc.ID(), ErrSuperseded)
	}
	if inc == w.self.Incarnation {
		return nil, fmt.Errorf("kvplane: %s is this engine", inc.ID())
	}
	if err := w.makeRoom(); err != nil {
		return nil, err
	}
	e := &engine{}
	w.engines[inc] = e
	w.collected.shifted = true
	w.lookup(inc, func(records []metadata.Record, err error) { w.resolved(inc, records, err) })
	return e, nil
}

// resolved takes the answer of a look-up and goes on with everything that waited for it. An error is not cached.
func (w *owner) resolved(inc metadata.Incarnation, records []metadata.Record, err error) {
	e := w.engines[inc]
	if e == nil || e.peers != nil {
		return // superseded meanwhile, and failed already; or asked for twice, by an agent that was rebuilt meanwhile
	}
	w.collected.shifted = true
	if err == nil && w.newest[inc.Engine].least > inc.Generation {
		err = ErrSuperseded
	}
	for _, r := range records {
		if err == nil && w.agents[r.Agent] != nil { // what is known under a name is never another's
			err = fmt.Errorf("kvplane: the records of %s name agent %s, which is known already", inc.ID(), r.Agent)
		}
	}
	if err != nil {
		delete(w.engines, inc)
		w.log.Warn("kvplane: records of a peer", "peer", inc.ID(), "err", err)
		for _, id := range e.expects {
			w.fail(w.stepConsumer, id, err)
		}
		for _, id := range e.offers {
			w.fail(w.stepProducer, id, err)
		}
		w.held -= len(e.held)
		if errors.Is(err, ErrSuperseded) {
			w.gone(inc, w.cfg.SerialStarts)
		}
		return
	}
	known := w.newest[inc.Engine].least
	w.raise(inc.Engine, inc.Generation)
	if known < inc.Generation {
		for _, other := range w.olderThan(inc) {
			w.gone(other, w.cfg.SerialStarts)
		}
	}
	e.records, e.asked = records, w.now()
	for _, r := range records {
		e.peers = append(e.peers, w.addPeer(r))
	}
	w.serveAll(e)
}

// serveAll goes on with all that has waited for an engine's records.
func (w *owner) serveAll(e *engine) {
	w.collected.shifted = true
	expects, offers := e.expects, e.offers
	e.expects, e.offers = nil, nil
	for _, id := range expects {
		w.producers(id, e)
	}
	for _, id := range offers {
		w.consumers(id, e)
	}
	w.receiveHeld(e)
}

// addPeer makes a rank known by its record.
func (w *owner) addPeer(r metadata.Record) *peer {
	w.lastPeer++
	p := &peer{id: w.lastPeer, record: r}
	w.peers[p.id] = p
	w.agents[r.Agent] = p
	return p
}

// receiveHeld takes in the messages that have waited for an engine's records.
func (w *owner) receiveHeld(e *engine) {
	messages := e.held
	e.held = nil
	w.held -= len(messages)
	for _, m := range messages {
		if w.now()-m.at <= holdTime {
			w.receive(&m.letter)
		}
	}
}

// fail sends EvUnpaired: the records of a transfer's peer cannot be had.
func (w *owner) fail(step func(core.Event), id kvplane.TransferID, err error) {
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
func (w *owner) olderThan(inc metadata.Incarnation) []metadata.Incarnation {
	older := map[metadata.Incarnation]bool{}
	add := func(other metadata.Incarnation) {
		if other.Engine == inc.Engine && other.Generation < inc.Generation {
			older[other] = true
		}
	}
	for other := range w.engines {
		add(other)
	}
	for _, x := range w.quarantine {
		add(x.inc)
	}
	return slices.SortedFunc(maps.Keys(older), compareIncarnations)
}

// gone makes an incarnation void: nothing is sent to it and nothing heard from it any more. Where the
// transport can fence, nothing of it lands any more either.
func (w *owner) gone(inc metadata.Incarnation, proof bool) {
	w.collected.shifted = true
	w.raise(inc.Engine, inc.Generation+1)
	for _, older := range w.olderThan(inc) { // void with it, though nothing proves that their processes are gone
		w.gone(older, w.cfg.SerialStarts)
	}
	records := w.recordsOf(inc)
	proof = proof || w.dead(records)
	fenced := w.fenceAll(records)
	if e := w.engines[inc]; e != nil {
		delete(w.engines, inc)
		for _, p := range e.peers { // first of all, so that nothing that follows is said to it
			p.gone, p.retry = true, 0
		}
		for _, id := range e.expects {
			w.fail(w.stepConsumer, id, ErrSuperseded)
		}
		for _, id := range e.offers {
			w.fail(w.stepProducer, id, ErrSuperseded)
		}
		w.held -= len(e.held)
		for _, p := range e.peers {
			w.release(p)
		}
	}
	w.step(core.Event{Kind: core.EvGone, Inc: inc, Proof: proof, Fenced: fenced})
	switch {
	case !proof && records != nil:
		w.liveness.unprovenDead[inc] = records
		w.watch(w.cfg.Times.Resend)
	case proof:
		w.recheckQuarantine(func(x *quarantinedTransfer) bool { return x.inc == inc })
		delete(w.liveness.unprovenDead, inc)
	}
	if fenced {
		w.forgetAll(records)
	}
}

// fenceAll fences the ranks of an engine and says whether that was possible.
func (w *owner) fenceAll(records []metadata.Record) bool {
	f, ok := w.cfg.Transport.(transport.Fencer)
	if !ok {
		return false
	}
	for _, r := range records {
		if err := f.Fence(r.Agent); err != nil {
			w.log.Warn("kvplane: fence", "peer", r.Agent, "err", err)
			return false
		}
	}
	return len(records) > 0
}

// forgetAll has the transport forget ranks that it has fenced and that are never connected to again.
func (w *owner) forgetAll(records []metadata.Record) {
	f, ok := w.cfg.Transport.(transport.Fencer)
	if !ok {
		return
	}
	for _, r := range records {
		f.Forget(r.Agent)
	}
}

// release forgets a peer that is gone, as soon as no write to it is in progress.
func (w *owner) release(p *peer) {
	if !p.gone || p.writes > 0 {
		return
	}
	if p.connected {
		w.cfg.Transport.Disconnect(p.record.Agent)
		p.connected = false
	}
	delete(w.peers, p.id)
	if w.agents[p.record.Agent] == p {
		delete(w.agents, p.record.Agent)
	}
}

// producers gives the consumer the list of a transfer's producers (EvProducers).
func (w *owner) producers(id kvplane.TransferID, e *engine) {
	expected, err := w.expected(e)
	if err != nil {
		w.fail(w.stepConsumer, id, err)
		return
	}
	ev := core.Event{Kind: core.EvProducers, ID: id}
	for _, x := range expected {
		p := w.agents[x.Record.Agent]
		if err := w.connect(p); err != nil {
			w.fail(w.stepConsumer, id, err)
			return
		}
		ev.Links = append(ev.Links, core.Link{Peer: p.id, Writes: x.Writes, Down: !p.connected})
	}
	w.stepConsumer(ev)
}

// expected returns whom this rank hears from in transfers with an engine.
func (w *owner) expected(e *engine) ([]plan.Producer, error) {
	var err error
	if e.expected == nil {
		e.expected, err = plan.Producers(e.records, w.self, w.cfg.Allow)
	}
	return e.expected, err
}

// consumers gives the producer the list of consumers that an offer owes a write (EvConsumers).
func (w *owner) consumers(id kvplane.TransferID, e *engine) {
	if e.owed == nil {
		var err error
		if e.owed, err = plan.Consumers(w.self, e.records, w.cfg.Allow); err != nil {
			w.fail(w.stepProducer, id, err)
			return
		}
	}
	ev := core.Event{Kind: core.EvConsumers, ID: id}
	for _, r := range e.owed {
		p := w.agents[r.Agent]
		if err := w.connect(p); err != nil {
			w.fail(w.stepProducer, id, err)
			return
		}
		ev.Owed = append(ev.Owed, p.id)
	}
	w.stepProducer(ev)
}

// connect makes the transport know a peer, unless it does or a pause before the next attempt is running. While writes over a
// lost connection have not ended there is only the next attempt.
func (w *owner) connect(p *peer) error {
	if p.connected || p.retry > 0 {
		return nil
	}
	if p.gone {
		return fmt.Errorf("kvplane: %s: %w", p.record.ID(), ErrSuperseded)
	}
	if _, err := w.session(p); err != nil {
		return err
	}
	w.active = w.now()
	err := w.cfg.Transport.Connect(p.record)
	switch {
	case errors.Is(err, transport.ErrBusy):
		w.retryConnect(p)
		return nil
	case err != nil:
		return err
	}
	p.connected = true
	w.step(core.Event{Kind: core.EvUp, Peer: p.id})
	return nil
}

// retryConnect plans the next attempt to reach a peer.
func (w *owner) retryConnect(p *peer) {
	if p.connected || p.gone || p.retry > 0 {
		return
	}
	p.retry = w.now() + min(w.cfg.Times.Resend<<min(p.attempts, 10), w.cfg.Times.Pause)
	p.attempts++
	w.timers.Set(p)
	if p.attempts > 3 {
		w.suspectStale(p)
	}
}

// reconnect is the next attempt. That it works is known when the peer speaks; the cores send at once all the same.
func (w *owner) reconnect(p *peer) {
	p.retry = 0
	if p.gone || p.connected {
		return
	}
	if err := w.connect(p); err != nil {
		w.log.Warn("kvplane: connect", "peer", p.record.Agent, "err", err)
		w.step(core.Event{Kind: core.EvUnreachable, Peer: p.id, Detail: err.Error()})
		w.retryConnect(p)
	}
}

// lost handles the end of a connection.
func (w *owner) lost(agent string, err error) {
	p := w.agents[agent]
	if p == nil || !p.connected {
		return
	}
	w.log.Info("kvplane: connection lost", "peer", agent, "err", err)
	w.cfg.Transport.Disconnect(agent)
	p.connected, p.maybeRebuilt = false, true
	w.step(core.Event{Kind: core.EvDown, Peer: p.id})
	w.watch(w.cfg.Times.Resend)
}

// suspectStale asks the directory whether a silent peer's engine has been started anew or its rank rebuilt, at most every
// Times.Pause.
func (w *owner) suspectStale(p *peer) {
	now := w.now()
	if p.gone || p.suspectedAt > 0 && now-p.suspectedAt < w.cfg.Times.Pause {
		return
	}
	p.suspectedAt = now
	if e := w.engines[p.record.Incarnation]; e != nil {
		w.refresh(p.record.Incarnation, e)
	}
}
