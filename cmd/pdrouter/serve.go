package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/redisdb"
	"pdrouter/metadata"
	"pdrouter/router"
)

// runServe runs the gateway until ctx ends, then lets the requests under way finish.
func runServe(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("pdrouter serve", flag.ContinueOnError)
	flags.SetOutput(out)
	path := flags.String("c", "", "the configuration `file` (required); pdrouter check -c FILE shows what it would serve")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *path == "" || flags.NArg() > 0 {
		return errors.New("serve: want -c FILE and nothing else")
	}
	l, err := loadConfig(*path)
	if err != nil {
		return err
	}
	g, err := newGateway(l, newLogger(l.Log))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "pdrouter: clients on http://%s", g.clients.Addr())
	if g.agents != nil {
		fmt.Fprintf(out, " · agents on %s://%s", g.agentsScheme, g.agents.Addr())
	}
	fmt.Fprintf(out, " · operations on http://%s\n", g.operations.Addr())
	return g.run(ctx)
}

func newLogger(cfg logConfig) *slog.Logger {
	level, _ := cfg.level() // validated
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, options))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options))
}

// gateway is everything that pdrouter serve runs, built and listening but not yet serving.
type gateway struct {
	log    *slog.Logger
	router *router.Router
	cache  *metadata.Cache
	store  metadata.Store
	redis  redisdb.Client // nil if none is configured

	limiter *limits.Limiter

	credentials reloads  // keys and API keys from files, and issuers' key sets
	warnings    []string // to be repeated while this gateway runs

	clients, agents, operations net.Listener // agents is nil if there is no such listener
	agentsScheme                string
	agentRoutes                 *metadata.Handler // nil without agents
	operationRoutes             http.Handler
}

// newGateway builds every part from its section of the configuration and opens the listeners. On an error nothing is
// left open.
func newGateway(l *loaded, log *slog.Logger) (_ *gateway, err error) {
	g := &gateway{log: log, credentials: reloads{log: log}, warnings: l.Auth.developmentWarnings()}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	records, err := l.Auth.records(&g.credentials)
	if err != nil {
		return nil, err
	}
	var voucher metadata.Voucher
	if records != nil {
		voucher = records
	}
	g.store = metadata.NewMemory()
	if l.Metadata.Store == "redis" {
		redisdb.LogTo(log)
		if g.redis, err = redisdb.Open(l.Metadata.Redis); err != nil {
			return nil, fmt.Errorf("metadata.redis: %w", err)
		}
		g.store = metadata.NewRedis(g.redis, l.Metadata.Redis.WithDefaults().Prefix, voucher, log)
	}
	renewed := func(engine string) { g.router.Renewed(engine) } // the cache runs only when the router is there
	if g.cache, err = metadata.NewCache(g.store, l.Metadata.Cache, renewed, log); err != nil {
		return nil, err
	}
	meters := newMetrics()
	parts := router.Parts{Planner: l.policy, Records: g.cache, Observe: meters.observe, Refused: meters.refused, Log: log}
	clients, err := l.Auth.clients(&g.credentials)
	if err != nil {
		return nil, err
	}
	if clients != nil {
		parts.Clients = clients
	} else {
		log.Warn("auth.clients is not set: everybody who reaches the clients' listener may use it")
	}
	if records != nil {
		parts.Tickets = records
	}
	if l.Auth.ControlTokenFile != "" {
		parts.Token = metadata.TokenFile(l.Auth.ControlTokenFile)
	}
	if err = g.limits(l, &parts); err != nil {
		return nil, err
	}
	if err = g.stock(l, voucher, &parts); err != nil {
		return nil, err
	}
	if g.router, err = router.New(l.Config, parts); err != nil {
		return nil, err
	}
	operations := http.NewServeMux()
	operations.Handle("/", g.router.Operations())
	operations.Handle("GET /metrics", meters.handler())
	admins, err := l.Auth.admins(&g.credentials)
	if err != nil {
		return nil, err
	}
	g.operationRoutes = administered(admins, func() bool { return g.router.Stats().Ready }, operations, log)
	if err := g.agentsListener(l, voucher, meters.refusedAgent); err != nil {
		return nil, err
	}
	g.meter(meters)
	if g.clients, err = net.Listen("tcp", l.Listen.Clients); err != nil {
		return nil, fmt.Errorf("listen.clients: %w", err)
	}
	if g.operations, err = net.Listen("tcp", l.Listen.Operations); err != nil {
		return nil, fmt.Errorf("listen.operations: %w", err)
	}
	return g, nil
}

// agentsListener opens the listener for metadata, if the configuration has one.
func (g *gateway) agentsListener(l *loaded, voucher metadata.Voucher, refused func(status int, reason string)) error {
	if l.Listen.Agents == "" {
		return nil
	}
	agents, err := l.Auth.agents(&g.credentials)
	if err != nil {
		return err
	}
	if g.agentRoutes, err = metadata.NewHandler(l.Metadata.Routes, metadata.HandlerParts{
		Store: g.store, Copy: g.cache, Authorizer: agentsAuthorizer(agents), Voucher: voucher, Pairs: g.router.Pairs,
		Couples: g.router.Couples, Refused: refused, Log: g.log,
	}); err != nil {
		return err
	}
	if g.agents, err = net.Listen("tcp", l.Listen.Agents); err != nil {
		return fmt.Errorf("listen.agents: %w", err)
	}
	g.agentsScheme = "http"
	if files := l.Listen.AgentsTLS; files.on() {
		cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			return fmt.Errorf("listen.agents_tls: %w", err)
		}
		g.agents = tls.NewListener(g.agents, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
		g.agentsScheme = "https"
	}
	return nil
}

// meter registers what the router, the local copy of the metadata, the agents' routes, the limiter and issuers' key sets
// count. All of them must be there.
func (g *gateway) meter(m *metrics) {
	var watches func() metadata.WatchStats
	if g.agentRoutes != nil {
		watches = g.agentRoutes.Watches
	}
	var quarantined func() uint64
	if shared, ok := g.store.(*metadata.Redis); ok {
		quarantined = shared.Quarantined
	}
	m.registry.MustRegister(newRouterMetrics(g.router.Stats), newLimitMetrics(g.limiter.Stats),
		newMetadataMetrics(g.cache.Stats, watches, quarantined), newKeySetMetrics(g.credentials.sets), newReloadMetrics(g.credentials.stats))
}

// run serves until ctx ends or a listener fails. The clients' listener ends first: what its last requests need, and
// the probes that say «not ready», stay up until they are done.
func (g *gateway) run(ctx context.Context) error {
	defer g.close()
	serving, stopServing := context.WithCancelCause(ctx)
	defer stopServing(nil)
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
	part("limits", g.limiter.Run)
	part("credentials", g.credentials.run(g.warnings...))
	g.credentials.asked(serving)
	part("operations", httpServer(g.operations, g.operationRoutes, g.log))
	if g.agents != nil {
		part("agents", httpServer(g.agents, g.agentRoutes, g.log))
	}
	err := g.router.Serve(serving, g.clients)
	if cause := context.Cause(serving); ctx.Err() == nil && cause != nil {
		err = errors.Join(cause, err)
	}
	stopWorking()
	background.Wait()
	g.log.Info("stopped")
	return err
}

// httpServer returns what serves h on ln until its context ends, and then waits a moment for answers under way.
func httpServer(ln net.Listener, h http.Handler, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := &http.Server{
			Handler:           h,
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		}
		if streams, ok := h.(interface{ Close() }); ok {
			srv.RegisterOnShutdown(streams.Close) // they would last out the moment that others are given
		}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(ln) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err := srv.Shutdown(grace)
		if err != nil {
			err = srv.Close()
		}
		<-ended
		return err
	}
}

// close releases what run does not end by itself. It is safe to call twice and on a gateway that was only half built.
func (g *gateway) close() {
	if g.router != nil {
		g.router.Close()
	}
	for _, ln := range []net.Listener{g.clients, g.agents, g.operations} {
		if ln != nil {
			_ = ln.Close() // closed already where it was served
		}
	}
	if g.redis != nil {
		_ = g.redis.Close()
	}
}
