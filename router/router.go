// Package router is the gateway: it assembles what serves clients (edge, exchange, fanout), what looks after engines (monitor, handshake,
// reclaim) and the fleet of one configuration, replaces that configuration, and says what state all of it is in. It chooses no engine (package
// policies) and moves no KV (the engines, or package kvplane inside them).
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/internal/disconnect"
	"pdrouter/metadata"
	metahandshake "pdrouter/metadata/handshake"
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
	"pdrouter/router/edge"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
	"pdrouter/router/handshake"
	"pdrouter/router/kvevents"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/migration"
	"pdrouter/router/monitor"
	"pdrouter/router/peers"
	"pdrouter/router/reclaim"
	"pdrouter/router/report"
	"pdrouter/router/stored"
	"pdrouter/router/tokens"
	"pdrouter/router/trace"
	"pdrouter/router/upstream"
)

// Parts are what a router is built from. The zero value of each is usable, with the meaning given.
type Parts struct {
	Planner fleet.Planner          // nil: policies.Default()
	Shadow  fleet.Planner          // a second one, which is asked without effect; nil: there is none
	Clients edge.Authenticator     // nil: every caller is accepted
	Limiter edge.Limiter           // nil: no caller is limited
	Records fleet.Records          // nil: no engine of connector kvplane can be paired
	Stock   monitor.Stock          // asks stock engines for their ranks; nil: they are not asked
	Reclaim reclaim.Agent          // tells stock engines what is not wanted any more; nil: what needs that stays held
	Token   func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	Tickets kvtransfer.Signer      // signs the ticket of each transfer (connector kvplane); nil: legs carry none
	Observe func(report.Summary)   // called once per finished request, from many goroutines; must not block
	Moved   func(migration.Ended)  // called for each conversation that was moved, or was not; must not block. May be nil
	// Gone is called when an engine that the configuration lost has ended its last request and no other engine has its name: from
	// then on Knows reports false for it. It must not block. May be nil.
	Gone func(engine string)
	// Peers has what other gateways have at the engines; nil: only this gateway's own load counts.
	Peers peers.Store
	// Responses remembers which engine holds which stored response; nil: stored responses cannot be had.
	Responses stored.Responses
	// Stale returns the sources of engines that cannot be read now, for the body of /ready. May be nil.
	Stale func() []StaleSource
	// Refused is called once per request that was answered before it was admitted, so without a Summary: bad framing,
	// route, credentials, body or model. reason is one of the code's own. It must not block.
	Refused func(status int, why string)
	Tracer  trace.Tracer // samples requests and takes their traces; nil: no request is traced
	Log     *slog.Logger // nil: nothing is logged
}

// Router serves clients and owns every connection to the engines. New makes one; Run must run while Serve does.
type Router struct {
	current  atomic.Pointer[snapshot] // see snapshot() and Apply
	applying sync.Mutex               // one Apply at a time

	log       *slog.Logger
	clients   *disconnect.Watcher
	tasks     *background.Tasks
	cancels   upstream.CancelSet
	pairs     *fleet.Handshakes
	monitor   *monitor.Monitor
	reclaim   *reclaim.Reclaimer
	hands     *handshake.Handshaker
	report    *report.Reporter
	exchanges *exchange.Exchanges
	moves     *migration.Mover
	handOffs  *handoff.Watch

	stale   func() []StaleSource // nil: not known
	control *http.Client         // for the engines' control routes
	edge    *edge.Edge

	backgrounds *stored.Background

	blocks   *blocks.Index // what engines say that they hold
	kvEvents *kvevents.Feed
	peers    *peers.Peers // nil: no other gateway is told
}

// tokenBytes is how much is learned of prompts' token ids for each block that the index of blocks may have: a block of 16 tokens.
const tokenBytes = 16 * 4

// New returns a router that has connected to nothing yet. The configuration is validated and copied.
func New(cfg config.Config, parts Parts) (*Router, error) {
	if parts.Log == nil {
		parts.Log = slog.New(slog.DiscardHandler)
	}
	cfg, err := completed(cfg)
	if err != nil {
		return nil, err
	}
	r := &Router{
		log:     parts.Log,
		clients: disconnect.New(),
		report:  report.New(parts.Log, cfg.Limits.Recent),
		stale:   parts.Stale,
		control: fleet.NewControlClient(nil), handOffs: handoff.New(),
	}
	r.tasks = background.NewTasks(parts.Log, leg.ErrLate)
	r.backgrounds = stored.NewBackground(parts.Log, r.tasks, func() (*config.Config, *fleet.Fleet) { s := r.snapshot(); return &s.cfg, s.fleet })
	r.pairs = fleet.NewHandshakes()
	r.pairs.Registry, err = metahandshake.New(metahandshake.Config{
		Timeout: cfg.Timeouts.Probe, Concurrency: cfg.Limits.Handshakes, PerEngine: cfg.Limits.HandshakesPerEngine,
	}, func(ctx context.Context, pair metadata.Pair) error { return r.hands.Handshake(ctx, pair) })
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r.blocks = blocks.New(cfg.Limits.KVIndexBlocks)
	r.kvEvents = kvevents.New(parts.Log, r.blocks, r.tasks, func() *fleet.Fleet { return r.snapshot().fleet })
	if parts.Peers != nil {
		r.peers = peers.New(parts.Log, parts.Peers, func() *fleet.Fleet { return r.snapshot().fleet })
	}
	transfers := kvtransfer.New(parts.Log, r.tasks)
	leaks := new(reclaim.Leaks)
	r.monitor = monitor.New(parts.Log, func() *monitor.Snapshot { return &r.snapshot().monitored }, r.tasks, r.pairs, r.report.Transfers, leaks)
	r.reclaim = reclaim.New(parts.Log, r.tasks, r.pairs, r.monitor, leaks)
	r.hands = handshake.New(parts.Log, func() *handshake.Snapshot { return &r.snapshot().handshake }, r.tasks, r.pairs, &r.cancels, r.monitor, r.reclaim, transfers)
	r.moves = migration.New(migration.Parts{
		Log: parts.Log, Current: func() *migration.Snapshot { return &r.snapshot().migration }, Tasks: r.tasks, Cancels: &r.cancels, Reclaim: r.reclaim,
		Transfers: transfers, Observe: parts.Moved,
	})
	r.exchanges = exchange.New(exchange.Parts{
		Log: parts.Log, Disconnects: r.clients, Tasks: r.tasks, Cancels: &r.cancels, Pairs: r.pairs, Monitor: r.monitor, Reclaim: r.reclaim,
		Transfers: transfers, Report: r.report, Moves: r.moves, HandOffs: r.handOffs, Tokens: tokens.New(tokenBytes * cfg.Limits.KVIndexBlocks),
	})
	r.edge = edge.New(edge.Parts{
		Log: parts.Log, Current: func() *edge.Snapshot { return &r.snapshot().edge }, Disconnects: r.clients, Exchanges: r.exchanges,
		Backgrounds: r.backgrounds, Serves: func() bool { return r.snapshot().serves() },
	})
	s, err := r.newSnapshot(cfg, parts, nil, true)
	if err != nil {
		r.pairs.Close()
		return nil, err
	}
	r.current.Store(s)
	r.moves.Update()
	return r, nil
}

var errStopped = errors.New("the router stops")

// Close ends what outlives requests: handshakes, idle connections, and legs that run on, which get the time of an ending,
// or that of draining if it is less. Serve must have returned. The router's parts must still work, as those legs need them. It is safe to
// call twice.
func (r *Router) Close() {
	r.pairs.Close()
	r.moves.Close()
	r.backgrounds.Close()
	late := time.AfterFunc(min(r.snapshot().cfg.Timeouts.Cleanup, r.snapshot().cfg.Timeouts.Drain), func() {
		r.tasks.Stop(errStopped)
		r.cancels.Cancel(errStopped)
	})
	r.tasks.Wait()
	late.Stop()
	r.tasks.Stop(errStopped)
	r.clients.Close()
	r.exchanges.Close()
	r.snapshot().fleet.Close()
	r.control.CloseIdleConnections()
}
