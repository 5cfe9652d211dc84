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
	cfg          Config
	self         metadata.Record
	log          *slog.Logger
	ctx          context.Context // ends with Close
	host         host
	producer     *core.Producer
	consumer     *core.Consumer
	timers       alarm.Timers // the owner's own: reconnects, liveness, stuck writes
	liveness     livenessMonitor
	stuck        stuck
	shutdown     shutdown
	engines      map[metadata.Incarnation]*engine
	newest       map[string]generation // by engine name
	room         int                   // how many peers may be known
	asking       bool                  // the directory is asked whether an unused engine still exists
	agents       map[string]*peer
	peers        map[core.PeerID]*peer
	lastPeer     core.PeerID
	heldMessages int // of unknown senders, in all engines
	writes       map[uint64]*write
	lastID       uint64
	sent         map[kvplane.TransferID]uint64                     // P: bytes written of offers that are held
	owing        map[metadata.Incarnation]int                      // P: offers that have not ended
	awaited      map[kvplane.TransferID]*awaitedTransfer           // D: expectations that have not ended
	apply        func(q delivery, out []core.Effect) []core.Effect // gives an event to the core that it is for
	deliveries   []delivery
	delivering   bool
	contended    int           // for so many more spins the owners of this process take turns
	reported     bool          // a report was made in this pass
	acksDue      []*peer       // peers that get an ACK at the end of this pass
	active       time.Duration // when something last happened
	sentAt       time.Duration // when something was last sent
	polledAt     time.Duration // when the transport was last asked
	moving       time.Duration // so long at most the bytes of the writes in progress should take
	wokenAt      time.Duration // when its Wake last woke the owner
	stats        Status
	drops        [core.Drops]int
	received     [kvplane.Reasons]uint64 // D: transfers ended, by reason
	served       [kvplane.Reasons]uint64 // P: the same
	failed       [kvplane.Reasons]uint64 // P: writes that were refused or ended in an error

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

// delivery is an event on its way to one of the state machines.
type delivery struct {
	event    core.Event
	producer bool
}

// newOwner makes an owner that has done nothing yet. Its host has no asker: the caller gives it one.
func newOwner(ctx context.Context, cfg Config, self metadata.Record, h host) *owner {
	o := &owner{
		cfg: cfg, self: self, log: cfg.Log.With("agent", self.Agent), ctx: ctx, host: h,
		producer: core.NewProducer(cfg.Times), consumer: core.NewConsumer(cfg.Times),
		liveness: livenessMonitor{unprovenDead: map[metadata.Incarnation][]metadata.Record{}},
		engines:  map[metadata.Incarnation]*engine{}, agents: map[string]*peer{}, peers: map[core.PeerID]*peer{},
		room: transport.MaxPeers, newest: map[string]generation{}, owing: map[metadata.Incarnation]int{}, awaited: map[kvplane.TransferID]*awaitedTransfer{},
		writes: map[uint64]*write{}, sent: map[kvplane.TransferID]uint64{}, wakeup: make(chan struct{}, 1),
	}
	o.collected.pendingChanged = true
	o.apply = o.toCore
	return o
}

// now is the time since the agent's start, never 0.
func (o *owner) now() time.Duration { return o.host.now() }

// engineCall hands a call of the engine to the owner. It never blocks; once the end has begun it is ignored and engineCall is
// false.
func (o *owner) engineCall(call func()) bool {
	o.inbox.mu.Lock()
	open := !o.inbox.closed
	if open {
		o.inbox.calls = append(o.inbox.calls, call)
	}
	o.inbox.mu.Unlock()
	if open {
		o.wakeUp()
	}
	return open
}

// enqueue hands a call to the owner that the owner itself has asked for. It never blocks.
func (o *owner) enqueue(call func()) {
	o.inbox.mu.Lock()
	o.inbox.calls = append(o.inbox.calls, call)
	o.inbox.mu.Unlock()
	o.wakeUp()
}

// close has the owner end. What the engine says afterwards is ignored.
func (o *owner) close() {
	o.inbox.mu.Lock()
	if !o.inbox.closed {
		o.inbox.closed = true
		o.inbox.calls = append(o.inbox.calls, o.beginShutdown)
	}
	o.inbox.mu.Unlock()
	o.wakeUp()
}

func (o *owner) wakeUp() {
	select {
	case o.wakeup <- struct{}{}:
	default: // a wakeup is pending already
	}
}

// run owns everything until its end, or until ctx ends.
func (o *owner) run() {
	timer := time.NewTimer(0)
	timer.Stop()
	var l idleBackoff
	for o.ctx.Err() == nil && !o.shutdownDone() {
		if o.pass() {
			l = idleBackoff{}
			o.active = o.now()
			continue
		}
		wait, forever := o.idleWait(&l)
		switch {
		case forever:
		case wait == 0:
			o.spin(l.passes)
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
		case <-o.wakeup:
			o.stats.Wakeups++
		case <-o.cfg.Transport.Wake():
			o.stats.Wakeups++
			o.wokenAt = o.now()
			o.active = o.wokenAt // what it announces may still be on its way
			l = idleBackoff{}
		case <-expired:
		case <-o.ctx.Done():
		}
		timer.Stop()
	}
}

// pass does everything that can be done now and says whether there was anything.
func (o *owner) pass() bool {
	o.inbox.mu.Lock()
	calls := o.inbox.calls
	o.inbox.calls = nil
	o.inbox.mu.Unlock()
	for _, call := range calls {
		call()
	}
	news := o.poll()
	now := o.now()
	if at := o.next(); at > 0 && at <= now {
		news = true
		for who := o.timers.Pop(now); who != nil; who = o.timers.Pop(now) {
			switch v := who.(type) {
			case *peer:
				o.reconnect(v)
			case *livenessMonitor:
				o.checkLiveness()
			case *stuck:
				o.lookForStuck()
			case *shutdown:
				v.wake = 0 // only to run again
			}
		}
		o.step(core.Event{Kind: core.EvTick})
	}
	if o.reported { // the goroutine that waits for the report runs first: acks are not urgent
		o.reported = false
		runtime.Gosched()
	}
	o.sendAcks()
	if o.collected.pendingChanged {
		o.keepPending()
	}
	return news || len(calls) > 0
}

// next returns the earliest time at which something is due, 0 if nothing is.
func (o *owner) next() time.Duration {
	var first time.Duration
	for _, at := range [...]time.Duration{o.timers.Next(), o.producer.Next(), o.consumer.Next()} {
		if at > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// poll takes in what the transport has.
func (o *owner) poll() bool {
	o.stats.Polls++
	since := max(o.polledAt, o.wokenAt) // it was not here before, or was announced then
	o.polledAt = o.now()
	o.incoming = o.cfg.Transport.Poll(o.incoming[:0])
	if len(o.incoming) > 0 {
		o.countWaiting(since)
	}
	for i := range o.incoming {
		in := o.incoming[i]
		o.incoming[i] = transport.Incoming{}
		switch in.Kind {
		case transport.MessageReceived:
			o.stats.Messages++
			o.message(in)
		case transport.WriteEnded:
			o.ended(in)
		case transport.PeerLost:
			o.lost(in.Agent, in.Err)
		}
	}
	return len(o.incoming) > 0
}

// message decodes what a peer sent. A message of an unknown sender is held until its record is here.
func (o *owner) message(in transport.Incoming) {
	l, err := wire.Decode(in.Body)
	if err != nil {
		o.drops[core.DropMalformed]++
		return
	}
	if string(l.To) != o.self.Agent || in.Agent != "" && in.Agent != string(l.Agent) {
		o.drops[core.DropForeign]++
		return
	}
	if o.agents[string(l.Agent)] != nil {
		o.receive(&l)
		return
	}
	if o.heldMessages >= maxHeldMessages {
		o.drops[core.DropWaiting]++
		return
	}
	e, err := o.resolve(l.Header().From)
	if err != nil || e.peers != nil { // known, but it has no such agent
		o.drops[core.DropStranger]++
		return
	}
	e.heldMessages = append(e.heldMessages, heldMessage{at: o.now(), packet: l})
	o.heldMessages++
}

// messageEvents is what each kind of message is, and whether it is for the producer, by its kind; Parse knows no others.
var messageEvents = [...]struct {
	kind     core.EventKind
	producer bool
}{
	wire.KindWriteRequest: {core.EvWriteRequest, true}, wire.KindCancel: {core.EvCancel, true}, wire.KindAck: {core.EvAck, true},
	wire.KindHeartbeat: {core.EvHeartbeat, true}, wire.KindStatus: {core.EvStatus, false}, wire.KindDone: {core.EvStatus, false},
	wire.KindHeartbeatAck: {core.EvHeartbeatAck, false}, wire.KindBye: {core.EvBye, false},
}

// receive checks the MAC of a known peer's message and gives the message to the core that it is for.
func (o *owner) receive(l *wire.Packet) {
	p := o.agents[string(l.Agent)]
	if p == nil || p.gone || !l.Is(&p.record) {
		o.drops[core.DropForeign]++
		return
	}
	if !o.verified(p, l.Whole) {
		o.drops[core.DropForged]++
		return
	}
	m, err := o.parse(p, l.Body)
	if err != nil {
		o.drops[core.DropMalformed]++
		return
	}
	p.attempts, p.used = 0, o.polledAt
	if err := o.connect(p); err != nil { // what it says counts all the same; it is answered once there is a connection
		o.log.Warn("kvplane: connect", "peer", p.record.Agent, "err", err)
		o.retryConnect(p)
	}
	e := core.Event{Peer: p.id, Inc: p.record.Incarnation, Seq: m.Seq, ID: m.ID, Msg: m, Detail: m.Why, Down: !p.connected}
	if m.Kind == wire.KindWriteRequest {
		e.Budget = o.budgetOf(p)
	}
	to := messageEvents[m.Kind]
	e.Kind = to.kind
	o.deliver(delivery{event: e, producer: to.producer})
}

// ended takes the end of a write.
func (o *owner) ended(in transport.Incoming) {
	x := o.writes[in.ID]
	if x == nil {
		o.drops[core.DropUnknown]++
		return
	}
	o.unposted(in.ID)
	e := core.Event{Kind: core.EvWritten, Peer: x.peer.id, Seq: x.seq, ID: x.id, Tokens: x.tokens}
	if in.Err != nil {
		e.Kind, e.Detail = core.EvBroken, in.Err.Error()
		o.log.Warn("kvplane: write", "transfer", x.id, "peer", x.peer.record.Agent, "err", in.Err)
	} else {
		o.stats.Written++
		o.stats.WrittenBytes += x.bytes
		o.sent[x.id] += x.bytes
	}
	o.stepProducer(e)
	o.release(x.peer)
}

// step gives an event to both cores.
func (o *owner) step(e core.Event) {
	o.stepConsumer(e)
	o.stepProducer(e)
}

func (o *owner) stepConsumer(e core.Event) { o.deliver(delivery{event: e}) }
func (o *owner) stepProducer(e core.Event) { o.deliver(delivery{event: e, producer: true}) }

// deliver gives events to the cores one after the other: what an effect causes comes after the effects beside it.
func (o *owner) deliver(q delivery) {
	o.deliveries = append(o.deliveries, q)
	if o.delivering {
		return
	}
	o.delivering = true
	for i := 0; i < len(o.deliveries); i++ {
		q := o.deliveries[i]
		o.deliveries[i] = delivery{}
		q.event.At = o.now()
		switch q.event.Kind {
		case core.EvRefused:
			o.failed[q.event.Reason]++
		case core.EvBroken:
			o.failed[kvplane.WriteFailed]++
		}
		o.effects = o.apply(q, o.effects[:0])
		for j := range o.effects {
			o.execute(&o.effects[j])
		}
		clear(o.effects)
	}
	o.deliveries = o.deliveries[:0]
	o.delivering = false
}

// toCore is what apply does unless a test stands in between.
func (o *owner) toCore(q delivery, out []core.Effect) []core.Effect {
	if q.producer {
		return o.producer.Step(q.event, out)
	}
	return o.consumer.Step(q.event, out)
}
