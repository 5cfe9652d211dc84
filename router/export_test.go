package router

import (
	"context"
	"net/http"
	"time"

	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies/blocks"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/kvwatch"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
	"pdrouter/router/stored"
	"pdrouter/router/tokens"
	"pdrouter/router/upstream"
)

// What the external tests of this package see of it beside its interface.

const (
	BackgroundPollMax = stored.PollMax
	KeepAliveEvent    = relay.KeepAliveEvent
	LoadApart         = kvwatch.LoadApart
	LoadSeldom        = kvwatch.LoadSeldom
	MaxCold           = maxCold
	MaxPairs          = maxPairs
	MaxLoggedAnswer   = exchange.MaxLoggedAnswer
	RankHeader        = fleet.RankHeader
	RefusedFor        = monitor.RefusedFor
)

// NewSealer makes the sealer of salts that a configuration asks for.
var NewSealer = newSealer

// TicketContext is the context of a ticket for a request with that salt.
func TicketContext(cfg config.Config, model, subject, tenant, salt string) ([16]byte, error) {
	seal, err := newSealer(cfg, nil)
	if err != nil {
		return [16]byte{}, err
	}
	return kvtransfer.ContextOf(model, subject, []byte(seal.Seal(tenant, []byte(salt)))), nil
}

// Tokens is what was learned of prompts' token ids.
func (d Debug) Tokens() *tokens.Map { return d.r.exchanges.Tokens }

// Queue is that of a model, also when the configuration has lost the model.
func (d Debug) Queue(model string) *admission.Queue { return d.r.snapshot().fleet.Models[model].Queue }

// ControlClient asks the control routes of engines.
func (d Debug) ControlClient() *http.Client { return d.r.control }

// OpenTransfer notes a transfer between two engines.
func (d Debug) OpenTransfer(id, prefill, decode string) {
	d.r.report.Transfers.Open(id, prefill, decode, metadata.Rank{})
}

// Attended is how many engines are looked after.
func (d Debug) Attended() int { return len(d.r.monitor.Monitored()) }

// CachedTokens is how many tokens of a chat's prompt an engine is thought to have.
func (d Debug) CachedTokens(engine, body string) (int, error) {
	b, herr := openai.ParseBody(openai.ShapeChat, []byte(body), openai.Limits{})
	if herr != nil {
		return 0, herr
	}
	s := d.r.snapshot()
	var k fleet.Selection
	k.Init(s.fleet, s.fleet.Models["tiny"], b.Shape, nil, "", 0)
	k.FindPrompt(b, "")
	defer k.ForgetPrompt()
	return k.Cached(s.fleet.Engine(engine)), nil
}

// Holds has the engine hold whole blocks of 4 of these tokens, and nothing else, as its events would say.
func (d Debug) Holds(engine, salt string, ids []uint32) {
	h := d.r.blocks.Join()
	b := &blocks.Blocks{Size: 4, Model: "tiny", Salt: salt, Tokens: ids[:len(ids)/4*4]}
	for i := range len(ids) / 4 {
		b.Handles = append(b.Handles, uint64(i+1))
	}
	d.r.blocks.Store(h, b)
	d.r.blocks.Show(h, true)
	d.r.snapshot().fleet.Engine(engine).SetHolder(&h)
}

// Sealed is a salt as engines get it.
func (d Debug) Sealed(tenant string) string { return d.r.snapshot().sealer.Seal(tenant, nil) }

// Restarted has an engine be another run.
func (d Debug) Restarted(engine string) { d.r.snapshot().fleet.Engine(engine).Generation.Add(1) }

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
	d.r.pairs.Registry, err = handshake.New(handshake.Config{}, f)
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
func (e DebugEngine) CacheTokens() int    { return e.e.CacheSize().Tokens() }
func (e DebugEngine) LoadedAdapters() []string {
	if s := e.e.AdapterSlots.Load(); s != nil {
		return s.Loaded
	}
	return nil
}
func (e DebugEngine) Backlog() int64     { return e.e.Backlog.Load() }
func (e DebugEngine) Supplied() int64    { return e.e.Supplied.Load() }
func (e DebugEngine) Overdue() int64     { return e.e.Overdue.Load() }
func (e DebugEngine) Generation() uint64 { return e.e.Generation.Load() }
func (e DebugEngine) Usable() bool       { return e.e.Usable() }
func (e DebugEngine) SetDown()           { e.e.Down.Store(true) }
func (e DebugEngine) SetDraining()       { e.e.Draining.Store(true) }
func (e DebugEngine) Key() string        { return e.e.Credential() }

// HasEndpoint reports whether the engine's endpoint is known.
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
	_, answer := e.r.monitor.Load(ctx, e.e)
	return answer == monitor.LoadKnown
}

// AddLeak enters blocks that the engine holds for nobody, until its lease ends where leased.
func (e DebugEngine) AddLeak(why reclaim.Cause, blocks int, leased bool) {
	lease := time.Duration(0)
	if leased {
		lease = 30 * time.Second
	}
	e.r.reclaim.Leaks.Add(e.e, why, blocks, lease, time.Now())
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

// PairsOf sorts the pairs of a Status.
func PairsOf(s Stats) []PairStatus { return pairsOf(s) }
