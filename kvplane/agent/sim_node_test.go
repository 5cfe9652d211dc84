package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// simNode is one rank's process: a real owner on a simulated machine.
type simNode struct {
	s         *sim
	run       *simRun
	rank      metadata.Rank
	record    metadata.Record
	owner     *owner
	t         *simTransport
	memory    *simMemory
	base      time.Duration // its clock's reading at its start
	start     time.Duration
	rate      int64         // of its clock, in thousandths
	paused    time.Duration // since when
	pause     time.Duration // until when
	wake      time.Duration // when it runs next; 0: not planned
	troubled  time.Duration // when it last did without an answer of the directory
	closing   bool
	dead      bool
	known     map[string]uint64 // by engine: the newest generation that it was told of
	abandoned map[kvplane.TransferID]time.Duration
	lapsed    map[kvplane.TransferID]bool
	toldAt    time.Duration // when the last orders of its scheduler come
	heardAt   time.Duration // and when its last report gets there
	lost      uint64        // reports that were lost since one was heard
}

// newSimNode starts a process.
func (s *sim) newSimNode(run *simRun, rank metadata.Rank) *simNode {
	number := len(s.nodes) + 1
	n := &simNode{
		s: s, run: run, rank: rank, start: s.now, rate: 1000, base: time.Duration(s.rng.Int64N(int64(time.Hour))) + 1,
		known: map[string]uint64{}, abandoned: map[kvplane.TransferID]time.Duration{}, lapsed: map[kvplane.TransferID]bool{},
	}
	if s.strike(faultClock) {
		n.rate = 950 + s.dice[faultClock].Int64N(101)
	}
	n.memory = newSimMemory(run, rank, uint64(number)<<32)
	h := &run.engine.shape
	host := run.engine.name
	if s.oneHost {
		host = "host"
	}
	key := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(number)))
	n.record = metadata.Record{
		Version: metadata.RecordVersion, Incarnation: run.inc, Role: run.engine.role, Rank: rank,
		Size: metadata.Rank{DP: 1, PP: h.pp, TP: h.tp}, Connector: "kvplane", Compatibility: "sim", Transport: "sim",
		Agent: run.inc.ID() + "/" + rank.String(), EngineID: run.inc.ID(), Layout: n.memory.layout, Key: key[:],
		Process: metadata.Process{Boot: host, Namespaces: "1", PID: number, Started: 1},
	}
	var tr transport.Transport
	n.t, tr = n.transport(n.record.Agent)
	cfg := Config{
		Self: n.record, Transport: tr, Times: s.times, Allow: plan.Allow{TokensFirstSplit: true},
		SerialStarts: s.serial, Log: slog.New(slog.DiscardHandler),
		Report: func(r kvplane.Report) { s.reported(n, r) }, Notify: func() { n.run.sched.rings(n) },
	}
	if s.tracing {
		cfg.Log = slog.New(slog.NewTextHandler(&simLog{n}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: simLogAttr}))
	}
	n.owner = newOwner(s.ctx, cfg, n.record, simHost(n))
	if s.caps != (core.Bounds{}) {
		n.owner.producer.Bounds = s.caps
	}
	n.owner.apply = n.watched(n.owner.apply)
	if s.mutant != nil && s.mutant.apply != nil {
		n.owner.apply = s.mutant.apply(s, n, n.owner.apply)
	}
	s.nodes = append(s.nodes, n)
	s.agents[n.record.Agent] = n
	return n
}

// transport makes the node's end of the network under an agent's name.
func (n *simNode) transport(agent string) (*simTransport, transport.Transport) {
	t := &simTransport{s: n.s, name: agent, node: n, peers: map[string]*simLink{}, barred: map[string]bool{}}
	var as transport.Transport = t
	switch {
	case n.s.fences && n.s.prepares:
		as = &simPreparingFencer{&simFencer{t}, &simPreparer{t}}
	case n.s.fences:
		as = &simFencer{t}
	case n.s.prepares:
		as = &simPreparer{t}
	}
	if m := n.s.mutant; m != nil && m.transport != nil {
		as = m.transport(n, as)
	}
	return t, as
}

func simHost(n *simNode) host {
	ask := n.ask
	if m := n.s.mutant; m != nil && m.ask != nil {
		ask = m.ask(n, ask)
	}
	// Not a real agreement, but as secret among simulated agents as one: each knows only its own name for it.
	agree := func(public []byte) ([]byte, error) {
		a, b := n.record.Key, public
		if bytes.Compare(a, b) > 0 {
			a, b = b, a
		}
		secret := sha256.Sum256(append(slices.Clone(a), b...))
		return secret[:], nil
	}
	if m := n.s.mutant; m != nil && m.agree != nil {
		agree = m.agree
	}
	return host{now: n.clock, ask: ask, agree: agree, exited: n.exited}
}

// exited is what the kernel says: the truth, on one host.
func (n *simNode) exited(p metadata.Process) bool {
	dead := n.s.nodes[p.PID-1].dead
	if dead {
		n.s.counts.reach("proof by the kernel")
	}
	return dead
}

// clock is the node's own time.
func (n *simNode) clock() time.Duration {
	return n.base + time.Duration(int64(n.s.now-n.start)*n.rate/1000)
}

// when turns a time of the node's clock into the world's.
func (n *simNode) when(at time.Duration) time.Duration {
	return n.start + time.Duration(math.Ceil(float64(at-n.base)*1000/float64(n.rate)))
}

// kick has the owner run soon: something has come for it.
func (n *simNode) kick(d time.Duration) {
	at := n.s.now + max(d, 1)
	if n.dead || n.wake > 0 && n.wake <= at {
		return
	}
	n.wake = at
	n.s.push(simStep{at: at, node: n, do: func() {
		n.wake = 0
		n.turn()
	}})
}

// post hands the owner a call, as the engine's scheduler does.
func (n *simNode) post(call func()) {
	if !n.dead {
		n.owner.engineCall(call)
		n.kick(n.s.some(50 * time.Microsecond))
	}
}

// turn is what the owner's goroutine does until it would sleep.
func (n *simNode) turn() {
	if n.pause > n.s.now {
		n.kick(n.pause - n.s.now)
		return
	}
	n.s.mix(uint64(n.record.Process.PID))
	passes := 0
	for n.owner.pass() || len(n.owner.inbox.calls) > 0 {
		n.owner.active = n.clock()
		if passes++; passes > 200 {
			n.s.fail("L3", "%s does not come to rest", n.record.Agent)
		}
	}
	n.checkAbandoned()
	if n.closing && n.owner.shutdownDone() {
		if err := n.owner.closeTransport(); err != nil {
			n.s.fail("panic", "close: %v", err)
		}
		n.s.counts.reach("closed in order")
		n.kill()
		return
	}
	if at := n.owner.next(); at > 0 {
		n.kick(n.when(at) - n.s.now)
	}
	if n.t.waiting() && n.polls() {
		n.kick(n.s.some(time.Millisecond))
	}
}

// polls says that the owner looks without being woken. As long as it is attentive it has looked, though here it is not
// made to look for nothing.
func (n *simNode) polls() bool {
	if n.pause <= n.s.now && n.clock()-n.owner.active >= grace {
		n.owner.polledAt = n.clock()
	}
	return !n.s.polled || n.owner.outstanding()
}

// arrive takes something in for the owner, who is woken if somebody rings or it polls.
func (n *simNode) arrive(in transport.Incoming, bell bool) {
	if n.dead {
		return
	}
	n.t.arrived = append(n.t.arrived, in)
	if bell || n.polls() {
		n.kick(n.s.some(100 * time.Microsecond))
	}
}

// halt stops the process for a while. Its card goes on.
func (n *simNode) halt(d time.Duration) {
	if !n.s.calm && !n.dead {
		if n.pause <= n.s.now {
			n.paused = n.s.now
		}
		n.pause = max(n.pause, n.s.now+d)
		n.s.note("%s is paused for %v", n.record.Agent, d)
	}
}

// close has the process end in order.
func (n *simNode) close() {
	if !n.dead && !n.closing {
		n.s.note("%s closes", n.record.Agent)
		n.closing = true
		n.owner.close()
		n.kick(1)
	}
}

// kill ends the process. What it had sent is on its way all the same.
func (n *simNode) kill() {
	if n.dead {
		return
	}
	n.dead = true
	n.s.note("%s is killed", n.record.Agent)
	n.t.die()
}

// told notes that the node has learnt that generations below g are over.
func (n *simNode) told(engine string, g uint64) {
	if n.known[engine] < g {
		n.s.note("%s learns that %s has generation %d", n.record.Agent, engine, g)
		n.known[engine] = g
	}
}

// void says that a peer's generation is over, as far as the node was told.
func (n *simNode) void(inc metadata.Incarnation) bool { return n.known[inc.Engine] > inc.Generation }
