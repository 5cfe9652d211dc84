// Package gateway assembles what pdrouter serve runs from one configuration, listens and serves, and takes a changed configuration into use
// while it serves. It owns the listeners, the configuration in use and the wiring between the parts; what the parts do is theirs. The
// command calls New and Run.
//
// What lives as long as the gateway stands in Gateway. What a reload replaces is a snapshot: credentials, certificates, listeners. The
// controller is the only one that changes the configuration, file and engines alike, one change after the other.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/limits"
	"pdrouter/internal/listener"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/reload"
	"pdrouter/internal/shared"
	"pdrouter/internal/telemetry"
	"pdrouter/internal/tracing"
	"pdrouter/internal/ui"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/redisstore"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/store"
	"pdrouter/router"
	"pdrouter/router/report"
)

// Options are what a gateway is told besides its configuration.
type Options struct {
	Version, Commit string          // of the build, for the metrics
	Logs            *telemetry.Logs // what its log goes by, so that a reload can change it; nil: it does not change
	SideChannels    SideChannels    // of stock engines; nil: as vLLM's engines have them
}

// setLogs has the section hold.
func setLogs(to *telemetry.Logs, c configfile.Log) {
	level, _ := c.MinLevel() // validated
	to.Set(level, c.Format == "text")
}

// Gateway is everything that pdrouter serve runs, built and listening but not yet serving. What stands here lives as long
// as it does; what a reload replaces is in current.
type Gateway struct {
	options Options
	started time.Time
	log     *slog.Logger
	logs    *telemetry.Logs // what log goes by; nil: it does not change
	metrics *metrics
	router  *router.Router
	parts   router.Parts // of the router, but for what is the snapshot's
	cache   *cache.Cache
	store   metadata.Store
	redis   redisdb.Client // nil if none is configured
	redisAt string         // its address
	sharing *slog.Logger   // the log with that, of what needs it

	limiter  *limits.Limiter
	tracing  *tracing.Exporter // nil: requests are not traced
	reclaims *reclaims         // the agent among stock engines

	signer    shared.Signer // of what gateways tell each other; nil: it is not signed
	responses *shared.Cache // which engine holds which stored response
	overrides *shared.Map   // what administrators want of engines
	loads     *shared.Map   // what each gateway has at the engines; nil without Redis
	records   *credentials  // the keys that check records

	current      atomic.Pointer[snapshot]
	controller   *controller
	files        *fileWatch
	reloads      reloadCounts
	failedBefore atomic.Uint64   // failures to read credentials, of sections that are no more
	working      context.Context // of what sections start; nil before Run

	engines     *fleetview.View
	adminRoutes http.Handler

	clients, agents, operations, admins *listener.Listener
	minute                              minute      // what clients have seen
	began                               beginnings  // of problems
	asked                               atomic.Bool // somebody looks whether this gateway is ready
	agentRoutes                         *routes.Handler
	operationRoutes                     http.Handler
}

// New builds every part from its section of the configuration and opens the listeners. On an error nothing is
// left open.
func New(l *configfile.Loaded, log *slog.Logger, o Options) (_ *Gateway, err error) {
	if o.Logs != nil {
		setLogs(o.Logs, l.Log)
	}
	g := &Gateway{options: o, started: time.Now(), log: log, sharing: log, logs: o.Logs, clients: listener.New("listen.clients"), agents: listener.New("listen.agents"), operations: listener.New("listen.operations"),
		admins: listener.New("listen.admin")}
	for _, d := range []*listener.Listener{g.clients, g.agents, g.operations, g.admins} {
		d.Log = log
	}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	g.records = &credentials{files: &reload.Credentials{Log: log}}
	records, err := l.Auth.NewRecords(g.records.files)
	if err != nil {
		return nil, err
	}
	var voucher metadata.Voucher
	if records != nil {
		voucher = records
	}
	g.store = store.NewMemory()
	if l.Metadata.Store == "redis" {
		g.redisAt = l.Metadata.Redis.At()
		g.sharing = log.With("redis", g.redisAt)
		redisdb.LogTo(log)
		if g.redis, err = redisdb.Open(l.Metadata.Redis); err != nil {
			return nil, fmt.Errorf("metadata.redis: %w", err)
		}
		g.store = redisstore.New(g.redis, l.Metadata.Redis.WithDefaults().Prefix, voucher, g.sharing)
	}
	if g.cache, err = cache.New(g.store, l.Advanced.MetadataCache, g.sharing); err != nil {
		return nil, err
	}
	if records != nil {
		g.signer = records.Shared()
	}
	g.responses = shared.NewCache(g.redis, l.Metadata.Redis.WithDefaults().Prefix, "responses", g.signer, g.sharing)
	g.metrics = newMetrics(o.Version, o.Commit)
	g.metrics.knows = func(engine string) bool { return g.router.Knows(engine) }
	g.limiter = limits.New(g.redis, l.Metadata.Redis.WithDefaults().Prefix, g.sharing)
	g.parts = router.Parts{Records: g.cache, Observe: g.observe, Moved: g.metrics.moved, Gone: g.metrics.forget, Refused: g.refused, Responses: g.responses, Stale: g.staleSources, Log: log}
	if g.redis != nil {
		g.loads = shared.NewMap(g.redis, l.Metadata.Redis.WithDefaults().Prefix, "load", g.signer, g.sharing)
		g.parts.Peers = g.loads
	}
	if records != nil && l.Auth.Records.KeyFile != "" {
		g.parts.Tickets = records.Tickets()
	}
	if err = g.openTracing(l.Tracing, o.Version); err != nil {
		return nil, err
	}
	g.parts.Stock = stockEngines{SideChannels: cmp.Or[SideChannels](o.SideChannels, vllmChannels{}), store: g.store, voucher: voucher}
	g.reclaims = newReclaims(l, log)
	first, err := g.newSnapshot(l, nil)
	if err != nil {
		return nil, err
	}
	if g.router, err = router.New(l.Config, g.partsOf(first, l.Config)); err != nil {
		first.discard(nil)
		return nil, err
	}
	g.cache.Subscribe(g.router.Renewed)
	if err = g.routes(l, voucher); err != nil {
		first.discard(nil)
		return nil, err
	}
	g.settle(first, nil)
	g.files = newFileWatch(l)
	g.controller = newController(l, g.reread(l.Path), g.apply)
	g.controller.reloaded = g.reloaded
	g.openEngines(l)
	g.reloads.began(time.Now())
	g.metrics.registry.Collect(g.collect)
	return g, nil
}

// Listening says where the gateway listens, for people.
func (g *Gateway) Listening() string {
	l := g.current.Load().l.Listen
	s := "clients on " + l.ClientsTLS.Scheme() + g.clients.Addr().String()
	if at := g.agents.Addr(); at != nil {
		s += " · agents on " + l.AgentsTLS.Scheme() + at.String()
	}
	if at := g.admins.Addr(); at != nil {
		s += " · administrators on " + l.AdminTLS.Scheme() + at.String()
	}
	return s + " · operations on http://" + g.operations.Addr().String()
}

// Clients is where clients connect.
func (g *Gateway) Clients() net.Addr { return g.clients.Addr() }

// Agents is where engines' agents connect; nil where none may.
func (g *Gateway) Agents() net.Addr { return g.agents.Addr() }

// Admins is where administrators connect; nil where none may.
func (g *Gateway) Admins() net.Addr { return g.admins.Addr() }

// Operations is where health, metrics and the like are served.
func (g *Gateway) Operations() net.Addr { return g.operations.Addr() }

// observe counts one finished request, and refused one that was not admitted.
func (g *Gateway) observe(s report.Summary) {
	g.metrics.observe(s)
	g.minute.ended(&s)
}

func (g *Gateway) refused(status int, reason string) {
	g.metrics.refused(status, reason)
	g.minute.refused(time.Now(), status)
}

// routes makes what the agents' and the operations' listener serve.
func (g *Gateway) routes(l *configfile.Loaded, voucher metadata.Voucher) (err error) {
	g.agentRoutes, err = routes.New(l.Advanced.MetadataRoutes, routes.Parts{
		Store: g.store, Copy: g.cache, Authorizer: routes.AuthorizerFunc(g.authorizeAgent), Voucher: voucher, Pairs: g.router.Pairs,
		Paired: g.router.Paired, Refused: g.metrics.refusedAgent, Log: g.log,
	})
	if err != nil {
		return err
	}
	guarded := ui.Handler(administered(g.admin, g.probe, g.lookRoutes(), g.log))
	g.operationRoutes = loopbackHosts(g.admin, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			g.asked.Store(true)
		}
		guarded.ServeHTTP(w, r)
	}), g.log)
	return nil
}

// lookRoutes are the routes of listen.operations. listen.admin has them too, so that one page can look and change.
func (g *Gateway) lookRoutes() *http.ServeMux {
	mux := g.router.Operations() // one for all routes, so that another method than theirs is answered with 405
	mux.Handle("GET /metrics", g.metrics.registry.Handler())
	mux.HandleFunc("GET /status", g.statusRoute)
	mux.HandleFunc("POST /config/reload", g.reloadRoute)
	return mux
}

// Run serves until ctx ends or a listener fails. Readiness ends first; then, when whoever looks at it has had time to, the
// clients' listener; what its last requests need, and the probes that say «not ready», stay up until they are done.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.close()
	serving, stopServing := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopServing(nil)
	stopping := context.AfterFunc(ctx, func() {
		g.router.Drain()
		if g.asked.Load() || g.router.AskedReady() {
			select {
			case <-time.After(g.router.Timeouts().PreStopDelay):
			case <-serving.Done():
			}
		}
		stopServing(nil)
	})
	defer stopping()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()

	var background sync.WaitGroup
	part := func(name string, run func(context.Context) error) {
		background.Go(func() {
			if err := run(working); err != nil && working.Err() == nil {
				stopServing(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("metadata", g.cache.Run)
	part("router", g.router.Run)
	part("reclaim", g.reclaims.run)
	part("limits", g.limiter.Run)
	part("problems", g.watchProblems)
	part("responses", g.responses.Run)
	if g.tracing != nil {
		part("tracing", g.tracing.Run) // it ends with what the last requests have left to send
	}
	g.working = working
	sections := append(g.current.Load().sections(), g.records)
	for _, s := range sections {
		s.start(working)
	}
	for _, s := range sections {
		s.files.Asked(serving)
	}
	part("configuration", g.controller.run)
	part("files", g.reloadChanged)
	part("sources", g.engines.Run)
	part("administrators", httpServer(g.admins, g.adminRoutes, g.log))
	g.engines.Ready(serving)
	part("operations", httpServer(g.operations, g.operationRoutes, g.log))
	part("agents", httpServer(g.agents, g.agentRoutes, g.log))
	err := g.router.Serve(serving, g.clients)
	if cause := context.Cause(serving); ctx.Err() == nil && cause != nil {
		err = errors.Join(cause, err)
	}
	g.router.Close() // before all else: legs that outlive their requests, and what frees their KV, need it
	stopWorking()
	background.Wait()
	for _, s := range append(g.current.Load().sections(), g.records) {
		s.stop()
	}
	g.log.Info("stopped")
	return err
}

// close releases what Run does not end by itself. It is safe to call twice and on a gateway that was only half built.
func (g *Gateway) close() {
	if g.router != nil {
		g.router.Close()
	}
	for _, d := range []*listener.Listener{g.clients, g.agents, g.operations, g.admins} {
		_ = d.Close() // closed already where it was served
	}
	if g.redis != nil {
		_ = g.redis.Close()
	}
}
