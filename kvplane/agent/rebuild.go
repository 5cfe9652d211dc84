package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// rebuildPause is the least time between two rebuilds of an agent: each fails every transfer that is under way.
const rebuildPause = time.Minute

// ErrTooSoon is what Rebuild returns within a minute after the last one.
var ErrTooSoon = errors.New("the agent was rebuilt less than a minute ago")

// Rebuild is the last way out of a quarantine, for a transport that cannot fence and a peer of whose death there is no
// proof: the transport is closed, so that nothing lands through it any more, and t takes its place under a new agent
// name. Everything under way fails (Failed, Sent) with reason Closing; what had failed is Reusable, and only where the
// peer is near does its death have to be proven as before, for such a peer copies without the transport. If the old transport cannot be
// closed nothing is Reusable without that proof, and what was being written is not Sent.
//
// It returns the record that must now be published instead of the old one; until then peers cannot reach this rank. The
// engine's incarnation stays what it is: its other ranks go on. Calls made meanwhile are carried out afterwards. An
// error means that nothing has changed. t is the agent's from then on, and the caller's if there was an error.
func (a *Agent) Rebuild(t transport.Transport) (metadata.Record, error) {
	answer := make(chan error, 1)
	if !a.owner.post(func() { answer <- a.rebuild(t) }) {
		return metadata.Record{}, transport.ErrClosed
	}
	select {
	case err := <-answer:
		return a.outcome(err)
	case <-a.done:
	}
	select { // it may have been carried out, and then its transport was closed with the agent
	case err := <-answer:
		return a.outcome(err)
	default:
		return metadata.Record{}, transport.ErrClosed
	}
}

func (a *Agent) outcome(err error) (metadata.Record, error) {
	if err != nil {
		return metadata.Record{}, err
	}
	return a.Record(), nil
}

// rebuild runs on the owner's goroutine.
func (a *Agent) rebuild(t transport.Transport) error {
	o := a.owner
	if now := o.now(); o.rebuilt > 0 && now-o.rebuilt < rebuildPause {
		return fmt.Errorf("kvplane: agent %s: %w", o.self.Agent, ErrTooSoon)
	}
	self, h := o.self, o.host
	base, epoch := agentEpoch(self.Agent)
	self.Agent = base + "#" + strconv.FormatUint(epoch+1, 10)
	if len(self.Agent) > plan.MaxName {
		return fmt.Errorf("kvplane: agent name of %d bytes; want at most %d", len(self.Agent), plan.MaxName)
	}
	var err error
	if self.Key, h.agree, err = transport.NewKey(); err != nil {
		return fmt.Errorf("kvplane: agent %s: %w", self.Agent, err)
	}
	transport.Introduce(t, self.Key, h.agree)
	if self.Blob, self.Doorbell, err = t.Open(self.Agent, o.cfg.Memory); err != nil {
		return fmt.Errorf("kvplane: agent %s: %w", self.Agent, err)
	}
	self.Transport = t.Name()
	o.log.Warn("kvplane: the agent is rebuilt", "as", self.Agent, "quarantined", o.quarantined())
	o.replace(self, h, t)
	a.mu.Lock()
	a.record = self
	a.mu.Unlock()
	return nil
}

// replace ends what the owner has under its old name and begins anew under another one, with a transport that is open.
func (o *owner) replace(self metadata.Record, h host, t transport.Transport) {
	o.step(core.Event{Kind: core.EvClose})
	o.sendAcks()
	o.poll() // so that what was said last may leave
	err := o.closeTransport()
	if err != nil {
		o.log.Error("kvplane: the old transport could not be closed; blocks stay held", "writing", len(o.writes), "quarantined", o.quarantined(), "err", err)
	}
	o.quarantineUnsafe(err == nil)
	o.self, o.host, o.cfg.Transport = self, h, t
	o.log = o.cfg.Log.With("agent", self.Agent)
	producer, consumer := o.producer, o.consumer
	o.reset()
	o.producer.KeepTombstones(producer, o.now()) // an id serves once, under whatever name
	o.consumer.KeepTombstones(consumer, o.now())
	o.rebuilt = o.now()
	if len(o.quarantine) > 0 {
		o.watch(o.cfg.Times.Resend)
	}
}

// quarantinedTransfer is a failed transfer of an agent that was rebuilt, in whose blocks a near process may still write.
type quarantinedTransfer struct {
	last core.Effect // the report that ends it
	inc  metadata.Incarnation
	near []metadata.Record // the ranks that may
}

// quarantineUnsafe keeps what is not safe though the agent that it came through is gone. Where no rank that is not proven dead is near,
// nothing lands any more, if the transport is closed.
func (o *owner) quarantineUnsafe(closed bool) {
	for _, id := range slices.SortedFunc(maps.Keys(o.awaited), kvplane.TransferID.Compare) {
		last, from, ok := o.consumer.FinalReport(id)
		if !ok || o.quarantine[id] != nil {
			continue
		}
		x := &quarantinedTransfer{inc: from, last: last}
		for _, record := range o.recordsOf(from) {
			if !closed || o.mayCopyDirectly(record) {
				x.near = append(x.near, record)
			}
		}
		if closed && len(x.near) == 0 {
			o.report(&x.last)
			continue
		}
		o.quarantine[id] = x
	}
}

// recheckQuarantine ends those whose writers are all proven dead, and says whether the others may come to be.
func (o *owner) recheckQuarantine(proven func(*quarantinedTransfer) bool) (again bool) {
	for _, id := range slices.SortedFunc(maps.Keys(o.quarantine), kvplane.TransferID.Compare) {
		x := o.quarantine[id]
		if !proven(x) {
			again = again || local(o.self.Process, x.near)
			continue
		}
		delete(o.quarantine, id)
		o.report(&x.last)
	}
	return again
}

// agentEpoch splits the name of a rank's agent: what all agents of this run of the rank have in common, and which of
// them it is, from 1.
func agentEpoch(name string) (base string, epoch uint64) {
	at := strings.LastIndexByte(name, '#')
	if at < strings.LastIndexByte(name, '/') {
		return name, 1
	}
	n, err := strconv.ParseUint(name[at+1:], 10, 64)
	if err != nil || n < 2 {
		return name, 1
	}
	return name[:at], n
}

// refreshPause is the least time between two look-ups of an engine whose ranks may have been rebuilt.
const refreshPause = 200 * time.Millisecond

// mayBeRebuiltAs says that an unknown agent may be one that a known engine's rank has been rebuilt as.
func (e *engine) mayBeRebuiltAs(agent string) bool {
	base, epoch := agentEpoch(agent)
	return slices.ContainsFunc(e.peers, func(p *peer) bool {
		known, at := agentEpoch(p.record.Agent)
		return known == base && at < epoch
	})
}

// refresh looks a known engine's records up again, one look-up at a time.
func (o *owner) refresh(inc metadata.Incarnation, e *engine) {
	now := o.now()
	if e.refreshing || e.refreshedAt > 0 && now-e.refreshedAt < refreshPause {
		return
	}
	e.refreshing, e.refreshedAt = true, now
	o.lookup(inc, func(records []metadata.Record, err error) {
		e.refreshing = false
		if o.engines[inc] != e {
			return // void meanwhile
		}
		if errors.Is(err, ErrSuperseded) {
			o.gone(inc, o.cfg.SerialStarts)
			return
		}
		if err == nil {
			o.replaceRebuilt(e, records)
		}
		for _, p := range e.peers {
			p.maybeRebuilt = false
		}
		o.serveAll(e)
	})
}

// refreshIfStale says that an engine is looked up again before a transfer begins with it: a rank that was lost may have been
// rebuilt, and a transfer with its old agent would fail.
func (o *owner) refreshIfStale(inc metadata.Incarnation, e *engine) bool {
	if slices.ContainsFunc(e.peers, func(p *peer) bool { return p.maybeRebuilt }) {
		o.refresh(inc, e)
	}
	return e.refreshing
}

// replaceRebuilt puts the agents that ranks have been rebuilt as in the place of the old ones. Never an older one.
func (o *owner) replaceRebuilt(e *engine, records []metadata.Record) {
	for i, r := range records {
		if i >= len(e.peers) || r.Rank != e.records[i].Rank || !e.mayBeRebuiltAs(r.Agent) || o.agents[r.Agent] != nil {
			continue
		}
		old := e.peers[i]
		o.log.Info("kvplane: a peer was rebuilt", "peer", old.record.Agent, "as", r.Agent)
		before := []metadata.Record{old.record}
		fenced := o.fenceAll(before)
		old.gone, old.retry = true, 0
		e.records = slices.Clone(e.records)
		e.records[i] = r
		e.expected, e.owed, e.tailed = nil, nil, false
		e.peers[i] = o.addPeer(r)
		// Its record is published only after its old transport was closed, so none of the writes that the old agent
		// had posted is in progress.
		o.step(core.Event{Kind: core.EvGone, Peer: old.id, Inc: r.Incarnation, Proof: true, Fenced: fenced})
		o.forgetAll(before)
		o.release(old)
	}
}
