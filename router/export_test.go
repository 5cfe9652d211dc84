package router

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/kvwatch"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/openai/choices"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/stored"
	"pdrouter/router/upstream"
)

// What the external tests of this package see of it beside its interface.

const (
	BackgroundPollMax = stored.PollMax
	HeadBytes         = headBytes
	KeepAliveEvent    = relay.KeepAliveEvent
	LoadApart         = kvwatch.LoadApart
	LoadSeldom        = kvwatch.LoadSeldom
	MaxCold           = maxCold
	MaxLoggedAnswer   = maxLoggedAnswer
	RankHeader        = fleet.RankHeader
	RefusedFor        = monitor.RefusedFor
	ScopePriority     = scopePriority
)

// PassedRoutes are the routes that are passed to one engine.
func PassedRoutes() (all []string) {
	for path, rt := range routes {
		if rt.does == pass {
			all = append(all, path)
		}
	}
	return all
}

// Routes are all routes.
func Routes() (all []string) {
	for path := range routes {
		all = append(all, path)
	}
	return all
}

// HasRoute reports whether a POST to the path is served.
func HasRoute(path string) bool {
	_, _, e := findRoute(path, "POST")
	return e == nil
}

// MostTokens and ExpectedTokens are what a body counts against limits before it is answered.
const MostTokens = mostTokens

func ExpectedTokens(b *openai.Body) int { return expectedTokens(b) }

// NewSealer makes the sealer of salts that a configuration asks for.
var NewSealer = newSealer

// NewFan is a stream of two choices: take gives it an event of one of them, ended is what its client got and how it ended.
func NewFan() (take func(choice int, event []byte) bool, ended func() (string, report.Outcome)) {
	f := &fan{stream: true, open: 3, merge: choices.NewMerger(1, 2), served: make([]servedBy, 2)}
	f.turn = sync.NewCond(&f.mu)
	f.sum.Status = 200
	for range 2 {
		f.branches = append(f.branches, &exchange{mailbox: mailbox{accepts: acceptsNone}})
	}
	return func(choice int, event []byte) bool { return f.take(choice, &exchange{}, event) },
		func() (string, report.Outcome) { return string(f.out), f.sum.Outcome }
}

// TicketContext is the context of a ticket for a request with that salt.
func TicketContext(cfg config.Config, model, subject, tenant, salt string) ([16]byte, error) {
	seal, err := newSealer(cfg, nil)
	if err != nil {
		return [16]byte{}, err
	}
	return kvtransfer.ContextOf(model, subject, []byte(seal.Seal(tenant, []byte(salt)))), nil
}

// Running is how much outlives its request.
func (d Debug) Running() int { return int(d.r.tasks.Running()) }

// BodiesOpened is how many bodies were begun to be read, TenantsOfBodies how many tenants have some in memory.
func (d Debug) BodiesOpened() uint64 { return d.r.bodies.opened.Load() }
func (d Debug) TenantsOfBodies() int { return len(d.r.bodies.tenants.held) }

// ServeConn serves one connection as if it were accepted.
func (d Debug) ServeConn(c net.Conn) error {
	app := d.r.newServer(d.r.snapshot().cfg)
	app.Handler() // readies it
	return app.Server().ServeConn(newArrivals(nil).add(c))
}

// EndRequests ends the time of every request.
func (d Debug) EndRequests() {
	for _, x := range d.r.exchanges.live.all() {
		x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvDeadline, Why: reason.Deadline}})
	}
}

// PrefillAnswered reports whether the prefill leg of some request has its answer.
func (d Debug) PrefillAnswered() bool {
	for _, x := range d.r.exchanges.live.all() {
		x.mu.Lock()
		a := x.current
		x.mu.Unlock()
		if a != nil && a.answered() {
			return true
		}
	}
	return false
}

// Queue is that of a model, also when the configuration has lost the model.
func (d Debug) Queue(model string) *admission.Queue { return d.r.snapshot().fleet.Models[model].Queue }

// EndBehindPrefill has a request end as its prefill leg is answered, and waits until that is over.
func (d Debug) EndBehindPrefill(ctx context.Context, body string) {
	r, now := d.r, d.r.snapshot()
	m := now.fleet.Models["tiny"]
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), now.limits)
	if herr != nil {
		panic(herr)
	}
	x := r.exchanges.newExchange(&request{with: &now.exchange, path: pathCompletions, m: m, b: b, arrived: time.Now()})
	defer x.timer.Stop()
	defer r.exchanges.live.remove(x)
	a := &attempt{split: true}
	a.prefill.Open(ctx, m.Prefill[0])
	a.decode.Open(ctx, m.Decode[0])
	x.cur = a
	x.attend(a)
	x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPrefillUsable}})
	x.closePrefill(a)
	a.prefill.End()
	a.decode.End()
	r.tasks.Wait()
}

// PanicInTheEnd has a request that is in that state of its dispatch end by an event, and what tells its client of it panic. It returns
// what the client is told; again is another panic.
func (d Debug) PanicInTheEnd(body string, in dispatch.State, kind dispatch.EventKind, lease Lease) (told *openai.Error, again func()) {
	r := d.r
	were := r.snapshot().fleet.Models["tiny"]
	m := &fleet.Model{Name: were.Name, Connector: were.Connector, Decode: were.Decode, Retries: new(admission.RetryBudget)}
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
	if herr != nil {
		panic(herr)
	}
	x := r.exchanges.newExchange(&request{with: &r.snapshot().exchange, m: m, b: b, arrived: time.Now(), caller: &admitted{r: r, request: request{b: b}, lease: lease}})
	a := &attempt{split: true}
	a.decode.Join(&r.cancels, were.Decode[0])
	a.prefill.Join(&r.cancels, were.Prefill[0])
	x.cur, x.d.State, x.d.Mode, x.d.Prefill, x.sum.Attempts = a, in, dispatch.InTurn, dispatch.LegAsked, 1
	m.Retries = nil // it is asked whether the client may try again, and panics
	x.attend(a)
	x.enqueue(envelope{e: dispatch.Event{Kind: kind, Why: reason.Deadline}})
	x.run()
	a.prefill.End()
	return x.reply.err, func() { x.panicked("once more") }
}

// ErrCut ends a stream before its time.
var ErrCut = relay.ErrCut

// Owned is a request whose owner is the test: it takes each step itself.
type Owned struct {
	*exchange
	body *openai.Body
}

// Own admits a request for model tiny.
func (d Debug) Own(body string) Owned {
	s := d.r.snapshot()
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), s.limits)
	if herr != nil {
		panic(herr)
	}
	return Owned{d.r.exchanges.newExchange(&request{with: &s.exchange, m: s.fleet.Models["tiny"], b: b, path: pathCompletions, arrived: time.Now()}), b}
}

func (o Owned) Run()                        { o.run() }
func (o Owned) Step(e dispatch.Event)       { o.step(e) }
func (o Owned) Enqueue(e dispatch.Event)    { o.enqueue(envelope{e: e}) }
func (o Owned) NextEvents() ([]byte, error) { return o.nextEvents() }
func (o Owned) Streams() bool               { return o.reply.stream != nil }
func (o Owned) SeenEnd() bool               { return o.reply.stream.Whole() }
func (o Owned) Refused() *openai.Error      { return o.reply.err }
func (o Owned) Answer() []byte              { return o.reply.body }
func (o Owned) Summary() *report.Summary    { return &o.sum }
func (o Owned) Release()                    { o.body.Release() }

func (o Owned) Ended() bool          { return o.over }
func (o Owned) Drains() bool         { return o.drains }
func (o Owned) DecodeCause() error   { return o.cur.decode.Cause() }
func (o Owned) HasBuffers() bool     { return o.reply.stream.HasBuffers() }
func (o Owned) Panicked(what string) { o.panicked(what) }
func (o Owned) AwaitWake()           { <-o.wake }
func (o Owned) Wake()                { background.Notify(o.wake) }

// SpoilAttempt and SpoilTimer have what reads these panic. What CleanUp returned before ends what they had begun, and the request.
func (o Owned) SpoilAttempt() { o.cur = nil }
func (o Owned) SpoilTimer()   { o.timer = nil }
func (o Owned) CleanUp() func() {
	a, timer := o.cur, o.timer
	return func() {
		timer.Stop()
		a.letGo()
		if o.r.live.len() != 0 { // what panics as it is told
			o.r.live.remove(o.exchange)
		}
	}
}

// AnswerAtTransferTime has decode answer when the time of a transfer is nearly over, and returns why its leg was ended, if it was.
func (o Owned) AnswerAtTransferTime() error {
	a := &attempt{split: true, reads: true}
	a.decode.Join(o.r.cancels, o.m.Decode[0])
	o.expect(a)
	defer a.letGo()
	a.decode.Begin()
	time.Sleep(o.s.cfg.Timeouts.Transfer - 1)
	a.decode.SetKV(leg.KVDone)
	a.decode.Became(dispatch.LegAnswered)
	time.Sleep(time.Second)
	return a.decode.Cause()
}

// UnreadTokens has decode's answer be too large: how many tokens of it are unread while the leg is asked, and when it is over.
func (o Owned) UnreadTokens() (asked, over int) {
	o.b.Shape, o.b.MaxTokens = openai.ShapeChat, -1
	a := new(attempt)
	a.decode.Join(o.r.cancels, o.m.Decode[0])
	a.decode.Begin()
	o.cur, o.why = a, reason.AnswerTooLarge
	a.decode.Failure = sse.ErrTooLarge
	asked = o.unreadTokens()
	a.decode.Became(dispatch.LegWhole)
	return asked, o.unreadTokens()
}

// Over reports whether there is nothing more to do but to close the stream, if it is one.
func (o Owned) Over() bool { return o.over || o.Streams() && o.reply.stream.Ended() != nil }

// Advance takes one step, and returns what it has brought of a stream.
func (o Owned) Advance() (events []byte) {
	o.advance()
	if out := o.reply.stream; out != nil {
		events = append(events, out.TakeOut()...)
	}
	return events
}

// TurnAway has the queues refuse who waits, as a shutdown does.
func (d Debug) TurnAway() { d.r.turnAway() }

// ControlClient asks the control routes of engines.
func (d Debug) ControlClient() *http.Client { return d.r.control }

// OpenTransfer notes a transfer between two engines.
func (d Debug) OpenTransfer(id, prefill, decode string) {
	d.r.report.Transfers.Open(id, prefill, decode, metadata.Rank{})
}

// Attended is how many engines are looked after.
func (d Debug) Attended() int { return d.r.monitor.Attended() }

// CachedTokens is how many tokens of a chat's prompt an engine is thought to have.
func (d Debug) CachedTokens(engine, body string) (int, error) {
	b, herr := openai.ParseBody(openai.ShapeChat, []byte(body), openai.Limits{})
	if herr != nil {
		return 0, herr
	}
	s := d.r.snapshot()
	var k fleet.Selection
	k.Init(s.fleet, s.fleet.Models["tiny"], b.Shape, nil, "")
	k.FindPrompt(b)
	defer k.Release()
	return k.Cached(s.fleet.Engine(engine)), nil
}

// Sealed is a salt as engines get it.
func (d Debug) Sealed(tenant string) string { return d.r.snapshot().sealer.Seal(tenant, nil) }

// Fleet is another value after each configuration that was applied.
func (d Debug) Fleet() any { return d.r.snapshot().fleet }

// DebugPair is a pair of engines.
type DebugPair struct {
	c *fleet.Pair
	r *Router
}

// Pair returns the n-th pair.
func (d Debug) Pair(n int) DebugPair { return DebugPair{d.r.snapshot().fleet.Pairs[n], d.r} }

// PairCount is how many pairs the configuration has.
func (d Debug) PairCount() int { return len(d.r.snapshot().fleet.Pairs) }

// Opened is how often the pair was taken out.
func (p DebugPair) Opened() int64 { return int64(p.c.Opened()) }

// Runs returns the pair as it is now.
func (p DebugPair) Runs() (metadata.Pair, error) { return p.r.snapshot().fleet.Runs(p.c) }

// Knows reports whether the pair of runs has shaken hands.
func (d Debug) Knows(p metadata.Pair) bool { return d.r.pairs.Ready(p) }

// SetHandshake has pairs shake hands by f, Warm has those begin that are due.
func (d Debug) SetHandshake(f func(context.Context, metadata.Pair) error) (err error) {
	d.r.pairs.Close()
	d.r.pairs.Pairs, err = metadata.NewPairs(metadata.PairsConfig{}, f)
	if err != nil {
		return err
	}
	s := d.r.snapshot()
	return d.r.Apply(s.cfg, s.parts)
}
func (d Debug) Warm() { d.r.hands.StartDue(time.Now()) }

// DebugEngine is an engine; that of a configuration is the same for as long as the router does not replace it.
type DebugEngine struct {
	e *fleet.Engine
	r *Router
}

// Engine returns the engine of that name; one that is not configured is none.
func (d Debug) Engine(name string) DebugEngine {
	return DebugEngine{d.r.snapshot().fleet.Engine(name), d.r}
}

// Engines are all of them.
func (d Debug) Engines() (all []DebugEngine) {
	for _, e := range d.r.snapshot().fleet.Engines {
		all = append(all, DebugEngine{e, d.r})
	}
	return all
}

func (e DebugEngine) None() bool          { return e.e == nil }
func (e DebugEngine) Name() string        { return e.e.Name }
func (e DebugEngine) InFlight() int64     { return e.e.InFlight.Load() }
func (e DebugEngine) AddInFlight(n int64) { e.e.InFlight.Add(n) }
func (e DebugEngine) Backlog() int64      { return e.e.Backlog.Load() }
func (e DebugEngine) Supplied() int64     { return e.e.Supplied.Load() }
func (e DebugEngine) Overdue() int64      { return e.e.Overdue.Load() }
func (e DebugEngine) Generation() uint64  { return e.e.Generation.Load() }
func (e DebugEngine) Usable() bool        { return e.e.Usable() }
func (e DebugEngine) SetDown()            { e.e.Down.Store(true) }
func (e DebugEngine) SetDraining()        { e.e.Draining.Store(true) }
func (e DebugEngine) Key() string         { return e.e.Credential() }

// HasEndpoint reports whether the engine's coordinates are known.
func (e DebugEngine) HasEndpoint() bool { return e.e.Endpoint.Load() != nil }

// Reached and Missed are what a health check found; Missed reports whether the engine is down by it.
func (e DebugEngine) Reached()     { e.e.Reached() }
func (e DebugEngine) Missed() bool { return e.e.Missed() }

// Look has the engine be looked at soon, Back is what is done when it is back, Restarted when it is another run.
func (e DebugEngine) Look()                    { e.e.PollSoon() }
func (e DebugEngine) Back(ctx context.Context) { e.r.monitor.Back(ctx, e.e) }
func (e DebugEngine) Restarted()               { e.r.monitor.Restarted(e.e, e.e.Endpoint.Load()) }

// AskControl asks the engine's control routes for something.
func (e DebugEngine) AskControl() (*http.Response, error) {
	return e.e.ControlClient.Get(e.e.ControlURL)
}

// Check is one health check; it reports whether the engine is well.
func (e DebugEngine) Check(its *upstream.Timeouts, timeout time.Duration) bool {
	return monitor.Check(e.e, its, timeout) == monitor.Healthy
}

// Load asks the engine what it has in hand, and reports whether it was told.
func (e DebugEngine) Load(ctx context.Context) bool {
	_, ok := e.r.monitor.LoadOf(ctx, e.e)
	return ok
}

// Strand enters blocks that the engine holds for nobody, until its lease ends where leased.
func (e DebugEngine) Strand(why reclaim.Cause, blocks int, leased bool) {
	e.r.reclaim.Leaks.Add(e.e, why, blocks, leased, time.Now())
}

// Recount asks the engine how many blocks it uses, Leaked is how many it is said to hold for nobody.
func (e DebugEngine) Recount(ctx context.Context, before int) (said, used int) {
	was := e.r.monitor.Recount(ctx, e.e, monitor.HeldBlocks{Said: before})
	return was.Said, was.Used
}
func (e DebugEngine) Leaked() int { return e.r.reclaim.Leaks.Blocks(e.e, time.Now()) }

// HalfOpen has the engine be out by failures of that kind, and its next request be its probe.
func (e DebugEngine) HalfOpen(why health.FailureKind) {
	e.e.Health.Failed(why, time.Now().Add(-time.Hour), health.BreakerRules{Failures: 1, Open: time.Second, Longest: time.Second})
}

// Probed reports whether a probe of the engine is waited for.
func (e DebugEngine) Probed() bool {
	out := e.e.Health.Standing(time.Now(), 0).Out
	return out == health.Answers || out == health.Streams
}

// Upstream is the client that sends it requests.
func (e DebugEngine) Upstream() *upstream.Client { return e.e.Upstream }
