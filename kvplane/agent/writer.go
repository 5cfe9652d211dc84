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

// writer is the goroutine that owns an agent's transport and both its tables. Nothing else touches them.
type writer struct {
	cfg      Config
	self     metadata.Record
	log      *slog.Logger
	ctx      context.Context // ends with Close
	host     host
	producer *core.Producer
	consumer *core.Consumer
	timers   alarm.Timers // the writer's own: reconnects, the vigil, stuck writes
	vigil    vigil
	stuck    stuck
	ending   ending
	engines  map[metadata.Incarnation]*engine
	newest   map[string]generation // by engine name
	room     int                   // how many peers may be known
	asking   bool                  // the directory is asked whether an engine that nobody uses is still there
	agents   map[string]*peer
	peers    map[core.PeerID]*peer
	lastPeer core.PeerID
	parked   int
	writes   map[uint64]*write
	lastID   uint64
	sent     map[kvplane.TransferID]uint64                   // P: bytes written of offers that are held
	owing    map[metadata.Incarnation]int                    // P: offers that have not ended
	awaited  map[kvplane.TransferID]*pending                 // D: expectations that have not ended
	remnants map[kvplane.TransferID]*remnant                 // D: of these, those that outlive the agent they came through
	apply    func(q queued, out []core.Effect) []core.Effect // gives an event to the core that it is for
	todo     []queued
	running  bool
	crowd    int           // so many spins more the owners of this process take turns
	told     bool          // the engine has been told something in this pass
	tell     []*peer       // who must be told what is settled
	active   time.Duration // when something last happened
	spoke    time.Duration // when something was last sent
	rebuilt  time.Duration // when the agent was last rebuilt
	looked   time.Duration // when the transport was last asked
	moving   time.Duration // so long at most the bytes of the writes in progress should take
	woken    time.Duration // when it last rang for an owner that slept
	stats    Status
	drops    [core.Drops]int
	received [kvplane.Reasons]uint64 // D: transfers ended, by reason
	served   [kvplane.Reasons]uint64 // P: the same
	failed   [kvplane.Reasons]uint64 // P: writes that were refused or ended in an error

	collected collected // waits for Agent.Collect

	inbox struct {
		mu     sync.Mutex
		calls  []func()
		closed bool
	}
	ring chan struct{}

	// Scratch.
	effects  []core.Effect
	incoming []transport.Incoming
	ranges   []kvplane.Range
	local    []int32
	remote   []int32
	body     []byte
	sealed   []byte
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
type queued struct {
	event    core.Event
	producer bool
}

// now is the time since the agent's start, never 0.
func (w *writer) now() time.Duration { return w.host.now() }

// post hands a call of the engine to the owner. It never blocks; once the end has begun it is ignored and post is
// false.
func (w *writer) post(call func()) bool {
	w.inbox.mu.Lock()
	open := !w.inbox.closed
	if open {
		w.inbox.calls = append(w.inbox.calls, call)
	}
	w.inbox.mu.Unlock()
	if open {
		w.rings()
	}
	return open
}

// later hands a call to the owner that the owner itself has asked for. It never blocks.
func (w *writer) later(call func()) {
	w.inbox.mu.Lock()
	w.inbox.calls = append(w.inbox.calls, call)
	w.inbox.mu.Unlock()
	w.rings()
}

// close has the owner end. What the engine says afterwards is ignored.
func (w *writer) close() {
	w.inbox.mu.Lock()
	if !w.inbox.closed {
		w.inbox.closed = true
		w.inbox.calls = append(w.inbox.calls, w.wind)
	}
	w.inbox.mu.Unlock()
	w.rings()
}

func (w *writer) rings() {
	select {
	case w.ring <- struct{}{}:
	default: // it rings already
	}
}

// run owns everything until its end, or until ctx ends.
func (w *writer) run() {
	timer := time.NewTimer(0)
	timer.Stop()
	var l lull
	for w.ctx.Err() == nil && !w.wound() {
		if w.pass() {
			l = lull{}
			w.active = w.now()
			continue
		}
		wait, forever := w.rest(&l)
		switch {
		case forever:
		case wait == 0:
			w.spin(l.passes)
			continue
		case wait == dozing:
			doze()
			continue
		}
		var expired <-chan time.Time
		if !forever {
			timer.Reset(wait)
			expired = timer.C
		}
		select {
		case <-w.ring:
			w.stats.Wakeups++
		case <-w.cfg.Transport.Wake():
			w.stats.Wakeups++
			w.woken = w.now()
			w.active = w.woken // what it announces may still be on its way
			l = lull{}
		case <-expired:
		case <-w.ctx.Done():
		}
		timer.Stop()
	}
}

// pass does everything that can be done now and says whether there was anything.
func (w *writer) pass() bool {
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
			case *vigil:
				w.look()
			case *stuck:
				w.lookForStuck()
			case *ending:
				v.wake = 0 // only to look again
			}
		}
		w.step(core.Event{Kind: core.EvTick})
	}
	if w.told { // whoever waits for that runs now: what the peers are told is not urgent
		w.told = false
		runtime.Gosched()
	}
	w.tellSettled()
	if w.collected.shifted {
		w.keepPending()
	}
	return news || len(calls) > 0
}

// next returns the earliest time at which something is due, 0 if nothing is.
func (w *writer) next() time.Duration {
	var first time.Duration
	for _, at := range [...]time.Duration{w.timers.Next(), w.producer.Next(), w.consumer.Next()} {
		if at > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// poll takes in what the transport has.
func (w *writer) poll() bool {
	w.stats.Polls++
	since := max(w.looked, w.woken) // it was not here before, or was announced then
	w.looked = w.now()
	w.incoming = w.cfg.Transport.Poll(w.incoming[:0])
	if len(w.incoming) > 0 {
		w.saw(since)
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

// message opens what a peer sent. Until its sender's record is here it is parked.
func (w *writer) message(in transport.Incoming) {
	l, err := wire.Unseal(in.Body)
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
	if w.parked >= maxParked {
		w.drops[core.DropWaiting]++
		return
	}
	e, err := w.want(l.Envelope().From)
	if err == nil && e.renewable(string(l.Agent)) {
		if w.renew(l.Envelope().From, e); !e.renewing { // it was looked up a moment ago
			w.drops[core.DropWaiting]++
			return
		}
	} else if err != nil || e.peers != nil { // known, but it has no such agent
		w.drops[core.DropStranger]++
		return
	}
	e.parked = append(e.parked, parked{at: w.now(), letter: l})
	w.parked++
}

// receive hands a message of a known peer to the core it is for, if the peer has really sent it.
func (w *writer) receive(l *wire.Letter) {
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
	p.attempts, p.unsure, p.used = 0, false, w.looked
	if err := w.connect(p); err != nil { // what it says counts all the same; it is answered once there is a connection
		w.log.Warn("kvplane: connect", "peer", p.record.Agent, "err", err)
		w.again(p)
	}
	e := core.Event{Peer: p.id, Inc: p.record.Incarnation, Seq: m.Seq, ID: m.ID, Msg: m, Detail: m.Why, Down: !p.connected}
	switch m.Kind {
	case wire.KindRegister:
		e.Kind, e.Budget = core.EvRegister, w.budgetOf(p)
		w.stepProducer(e)
	case wire.KindCancel:
		e.Kind = core.EvCancel
		w.stepProducer(e)
	case wire.KindFloor:
		e.Kind = core.EvFloor
		w.stepProducer(e)
	case wire.KindBeat:
		e.Kind = core.EvBeat
		w.stepProducer(e)
	case wire.KindStatus, wire.KindDone:
		e.Kind = core.EvStatus
		w.stepConsumer(e)
	case wire.KindBeatAck:
		e.Kind = core.EvBeatAck
		w.stepConsumer(e)
	case wire.KindBye:
		e.Kind = core.EvBye
		w.stepConsumer(e)
	}
}

// ended takes the end of a write.
func (w *writer) ended(in transport.Incoming) {
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
func (w *writer) step(e core.Event) {
	w.stepConsumer(e)
	w.stepProducer(e)
}

func (w *writer) stepConsumer(e core.Event) { w.enqueue(queued{event: e}) }
func (w *writer) stepProducer(e core.Event) { w.enqueue(queued{event: e, producer: true}) }

// enqueue gives events to the cores one after the other: what an effect causes comes after the effects beside it.
func (w *writer) enqueue(q queued) {
	w.todo = append(w.todo, q)
	if w.running {
		return
	}
	w.running = true
	for i := 0; i < len(w.todo); i++ {
		q := w.todo[i]
		w.todo[i] = queued{}
		q.event.At = w.now()
		switch q.event.Kind {
		case core.EvRefused:
			w.failed[q.event.Reason]++
		case core.EvBroken:
			w.failed[kvplane.WriteFailed]++
		}
		w.effects = w.apply(q, w.effects[:0])
		for j := range w.effects {
			w.do(&w.effects[j])
		}
		clear(w.effects)
	}
	w.todo = w.todo[:0]
	w.running = false
}

// toCore is what apply does unless a test stands in between.
func (w *writer) toCore(q queued, out []core.Effect) []core.Effect {
	if q.producer {
		return w.producer.Step(q.event, out)
	}
	return w.consumer.Step(q.event, out)
}
