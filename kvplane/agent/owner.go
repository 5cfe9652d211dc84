package agent

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// owner is the goroutine that owns an agent's transport and both its tables. Nothing else touches them.
type owner struct {
	cfg        Config
	self       metadata.Record
	log        *slog.Logger
	ctx        context.Context // ends with Close
	host       host
	producer   *core.Producer
	consumer   *core.Consumer
	timers     alarm.Timers // the owner's own: reconnects, liveness, stuck writes
	liveness   livenessMonitor
	stuck      stuck
	shutdown   shutdown
	engines    map[metadata.Incarnation]*engine
	newest     map[string]generation // by engine name
	room       int                   // how many peers may be known
	asking     bool                  // the directory is asked whether an engine that nobody uses is still there
	agents     map[string]*peer
	peers      map[core.PeerID]*peer
	lastPeer   core.PeerID
	held       int
	writes     map[uint64]*write
	lastID     uint64
	sent       map[kvplane.TransferID]uint64                     // P: bytes written of offers that are held
	owing      map[metadata.Incarnation]int                      // P: offers that have not ended
	awaited    map[kvplane.TransferID]*pending                   // D: expectations that have not ended
	quarantine map[kvplane.TransferID]*quarantinedTransfer       // D: of these, those that outlive the agent they came through
	apply      func(q delivery, out []core.Effect) []core.Effect // gives an event to the core that it is for
	deliveries []delivery
	delivering bool
	contended  int           // for so many more spins the owners of this process take turns
	reported   bool          // a report was made in this pass
	acksDue    []*peer       // peers that get an ACK at the end of this pass
	active     time.Duration // when something last happened
	sentAt     time.Duration // when something was last sent
	rebuilt    time.Duration // when the agent was last rebuilt
	polledAt   time.Duration // when the transport was last asked
	moving     time.Duration // so long at most the bytes of the writes in progress should take
	wokenAt    time.Duration // when its Wake last woke the owner
	stats      Status
	drops      [core.Drops]int
	received   [kvplane.Reasons]uint64 // D: transfers ended, by reason
	served     [kvplane.Reasons]uint64 // P: the same
	failed     [kvplane.Reasons]uint64 // P: writes that were refused or ended in an error

	collected collected // waits for Agent.Collect

	inbox struct {
		mu     sync.Mutex
		calls  []func()
		closed bool
	}
	wakeup chan struct{}

	// Scratch.
	effects  []core.Effect
	incoming []transport.Incoming
	ranges   []kvplane.Range
	local    []int32
	remote   []int32
	body     []byte
	packet   []byte
}

// write is one that the transport has in progress.
type write struct {
	peer   *peer
	seq    uint64
	id     kvplane.TransferID
	bytes  uint64
	tokens int
	at     time.Duration // when it was posted
	logged bool          // that it is stuck
}

// queued is an event on its way to one of the cores.
type delivery struct {
	event    core.Event
	producer bool
}

// now is the time since the agent's start, never 0.
func (w *owner) now() time.Duration { return w.host.now() }

// post hands a call of the engine to the owner. It never blocks; once the end has begun it is ignored and post is
// false.
func (w *owner) post(call func()) bool {
	w.inbox.mu.Lock()
	open := !w.inbox.closed
	if open {
		w.inbox.calls = append(w.inbox.calls, call)
	}
	w.inbox.mu.Unlock()
	if open {
		w.wakeUp()
	}
	return open
}

// enqueue hands a call to the owner that the owner itself has asked for. It never blocks.
func (w *owner) enqueue(call func()) {
	w.inbox.mu.Lock()
	w.inbox.calls = append(w.inbox.calls, call)
	w.inbox.mu.Unlock()
	w.wakeUp()
}

// close has the owner end. What the engine says afterwards is ignored.
func (w *owner) close() {
	w.inbox.mu.Lock()
	if !w.inbox.closed {
		w.inbox.closed = true
		w.inbox.calls = append(w.inbox.calls, w.beginShutdown)
	}
	w.inbox.mu.Unlock()
	w.wakeUp()
}

func (w *owner) wakeUp() {
	select {
	case w.wakeup <- struct{}{}:
	default: // a wakeup is pending already
	}
}

// run owns everything until its end, or until ctx ends.
func (w *owner) run() {
	timer := time.NewTimer(0)
	timer.Stop()
	var l backoff
	for w.ctx.Err() == nil && !w.shutdownDone() {
		if w.pass() {
			l = backoff{}
			w.active = w.now()
			continue
		}
		wait, forever := w.idleWait(&l)
		switch {
		case forever:
		case wait == 0:
			w.spin(l.passes)
			continue
		case wait == sleepShortly:
			shortSleep()
			continue
		}
		var expired <-chan time.Time
		if !forever {
			timer.Reset(wait)
			expired = timer.C
		}
		select {
		case <-w.wakeup:
			w.stats.Wakeups++
		case <-w.cfg.Transport.Wake():
			w.stats.Wakeups++
			w.wokenAt = w.now()
			w.active = w.wokenAt // what it announces may still be on its way
			l = backoff{}
		case <-expired:
		case <-w.ctx.Done():
		}
		timer.Stop()
	}
}

// pass does everything that can be done now and says whether there was anything.
func (w *owner) pass() bool {
	w.inbox.mu.Lock()
	calls := w.inbox.calls
	w.inbox.calls = nil
	w.inbox.mu.Unlock()
	for _, call := range calls {
		call()
	}
	news := w.poll()
	now := w.now()
	if at := w.next(); at > 0 && at <= now {
		news = true
		for who := w.timers.Pop(now); who != nil; who = w.timers.Pop(now) {
			switch v := who.(type) {
			case *peer:
				w.reconnect(v)
			case *livenessMonitor:
				w.checkLiveness()
			case *stuck:
				w.lookForStuck()
			case *shutdown:
				v.wake = 0 // only to run again
			}
		}
		w.step(core.Event{Kind: core.EvTick})
	}
	if w.reported { // the goroutine that waits for the report runs first: acks are not urgent
		w.reported = false
		runtime.Gosched()
	}
	w.sendAcks()
	if w.collected.shifted {
		w.keepPending()
	}
	return news || len(calls) > 0
}

// next returns the earliest time at which something is due, 0 if nothing is.
func (w *owner) next() time.Duration {
	var first time.Duration
	for _, at := range [...]time.Duration{w.timers.Next(), w.producer.Next(), w.consumer.Next()} {
		if at > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// poll takes in what the transport has.
func (w *owner) poll() bool {
	w.stats.Polls++
	since := max(w.polledAt, w.wokenAt) // it was not here before, or was announced then
	w.polledAt = w.now()
	w.incoming = w.cfg.Transport.Poll(w.incoming[:0])
	if len(w.incoming) > 0 {
		w.countWaiting(since)
	}
	for i := range w.incoming {
		in := w.incoming[i]
		w.incoming[i] = transport.Incoming{}
		switch in.Kind {
		case transport.MessageReceived:
			w.stats.Messages++
			w.message(in)
		case transport.WriteEnded:
			w.ended(in)
		case transport.PeerLost:
			w.lost(in.Agent, in.Err)
		}
	}
	return len(w.incoming) > 0
}

// message decodes what a peer sent. A message of an unknown sender is held until its record is here.
func (w *owner) message(in transport.Incoming) {
	l, err := wire.Decode(in.Body)
	if err != nil {
		w.drops[core.DropMalformed]++
		return
	}
	if string(l.To) != w.self.Agent || in.Agent != "" && in.Agent != string(l.Agent) {
		w.drops[core.DropForeign]++
		return
	}
	if w.agents[string(l.Agent)] != nil {
		w.receive(&l)
		return
	}
	if w.held >= maxHeldMessages {
		w.drops[core.DropWaiting]++
		return
	}
	e, err := w.resolve(l.Header().From)
	if err == nil && e.mayBeRebuiltAs(string(l.Agent)) {
		if w.refresh(l.Header().From, e); !e.refreshing { // it was looked up a moment ago
			w.drops[core.DropWaiting]++
			return
		}
	} else if err != nil || e.peers != nil { // known, but it has no such agent
		w.drops[core.DropStranger]++
		return
	}
	e.held = append(e.held, heldMessage{at: w.now(), letter: l})
	w.held++
}

// receive checks the MAC of a known peer's message and gives the message to the core that it is for.
func (w *owner) receive(l *wire.Packet) {
	p := w.agents[string(l.Agent)]
	if p == nil || p.gone || !l.Is(&p.record) {
		w.drops[core.DropForeign]++
		return
	}
	if !w.verified(p, l.Whole) {
		w.drops[core.DropForged]++
		return
	}
	m, err := w.parse(p, l.Body)
	if err != nil {
		w.drops[core.DropMalformed]++
		return
	}
	p.attempts, p.maybeRebuilt, p.used = 0, false, w.polledAt
	if err := w.connect(p); err != nil { // what it says counts all the same; it is answered once there is a connection
		w.log.Warn("kvplane: connect", "peer", p.record.Agent, "err", err)
		w.retryConnect(p)
	}
	e := core.Event{Peer: p.id, Inc: p.record.Incarnation, Seq: m.Seq, ID: m.ID, Msg: m, Detail: m.Why, Down: !p.connected}
	switch m.Kind {
	case wire.KindWriteRequest:
		e.Kind, e.Budget = core.EvWriteRequest, w.budgetOf(p)
		w.stepProducer(e)
	case wire.KindCancel:
		e.Kind = core.EvCancel
		w.stepProducer(e)
	case wire.KindAck:
		e.Kind = core.EvAck
		w.stepProducer(e)
	case wire.KindHeartbeat:
		e.Kind = core.EvHeartbeat
		w.stepProducer(e)
	case wire.KindStatus, wire.KindDone:
		e.Kind = core.EvStatus
		w.stepConsumer(e)
	case wire.KindHeartbeatAck:
		e.Kind = core.EvHeartbeatAck
		w.stepConsumer(e)
	case wire.KindBye:
		e.Kind = core.EvBye
		w.stepConsumer(e)
	}
}

// ended takes the end of a write.
func (w *owner) ended(in transport.Incoming) {
	x := w.writes[in.ID]
	if x == nil {
		w.drops[core.DropUnknown]++
		return
	}
	w.unposted(in.ID)
	e := core.Event{Kind: core.EvWritten, Peer: x.peer.id, Seq: x.seq, ID: x.id, Tokens: x.tokens}
	if in.Err != nil {
		e.Kind, e.Detail = core.EvBroken, in.Err.Error()
		w.log.Warn("kvplane: write", "transfer", x.id, "peer", x.peer.record.Agent, "err", in.Err)
	} else {
		w.stats.Written++
		w.stats.WrittenBytes += x.bytes
		w.sent[x.id] += x.bytes
	}
	w.stepProducer(e)
	w.release(x.peer)
}

// step gives an event to both cores.
func (w *owner) step(e core.Event) {
	w.stepConsumer(e)
	w.stepProducer(e)
}

func (w *owner) stepConsumer(e core.Event) { w.deliver(delivery{event: e}) }
func (w *owner) stepProducer(e core.Event) { w.deliver(delivery{event: e, producer: true}) }

// deliver gives events to the cores one after the other: what an effect causes comes after the effects beside it.
func (w *owner) deliver(q delivery) {
	w.deliveries = append(w.deliveries, q)
	if w.delivering {
		return
	}
	w.delivering = true
	for i := 0; i < len(w.deliveries); i++ {
		q := w.deliveries[i]
		w.deliveries[i] = delivery{}
		q.event.At = w.now()
		switch q.event.Kind {
		case core.EvRefused:
			w.failed[q.event.Reason]++
		case core.EvBroken:
			w.failed[kvplane.WriteFailed]++
		}
		w.effects = w.apply(q, w.effects[:0])
		for j := range w.effects {
			w.execute(&w.effects[j])
		}
		clear(w.effects)
	}
	w.deliveries = w.deliveries[:0]
	w.delivering = false
}

// toCore is what apply does unless a test stands in between.
func (w *owner) toCore(q delivery, out []core.Effect) []core.Effect {
	if q.producer {
		return w.producer.Step(q.event, out)
	}
	return w.consumer.Step(q.event, out)
}
