package router

import (
	"context"
	"fmt"
	"slices"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/edge"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/handshake"
	"pdrouter/router/migration"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
)

// snapshot is what a router works by at one moment. It is never changed: a reload, and an engine that comes or goes, makes
// another, and a request that is under way goes on by the one it was admitted with.
type snapshot struct {
	cfg    config.Config
	parts  Parts
	fleet  *fleet.Fleet
	limits openai.Limits
	sealer *openai.Sealer // nil: bodies keep their own cache_salt

	monitored monitor.Snapshot
	reclaim   reclaim.Snapshot
	handshake handshake.Snapshot
	exchange  exchange.Snapshot
	migration migration.Snapshot
	edge      edge.Snapshot
}

// completed returns the configuration with its defaults, or its mistakes.
func completed(cfg config.Config) (config.Config, error) {
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("router: config: %w", err)
	}
	return cfg.WithDefaults(), nil
}

// newSnapshot makes a snapshot of a completed configuration. Engines, pairs and models that old has too are carried over with
// all that is known of them. old may be nil. Unless reread is set, files with credentials that old has read are not read again.
func (r *Router) newSnapshot(cfg config.Config, parts Parts, old *snapshot, reread bool) (*snapshot, error) {
	if parts.Planner == nil {
		parts.Planner = policies.Default()
	}
	was, known := new(fleet.Fleet), new(config.Secrets)
	var seal *openai.Sealer
	if old != nil {
		was, seal = old.fleet, old.sealer
		if !reread {
			known = was.Secrets
		}
	}
	f, err := fleet.New(cfg, fleet.Parts{Planner: parts.Planner, Shadow: parts.Shadow, Records: parts.Records, Handshakes: r.pairs.Registry, Blocks: r.blocks, Tokens: r.exchanges.Tokens, Troubled: r.handOffs.Troubled, Control: r.control, Log: r.log}, was, config.NewSecrets(known))
	if err != nil {
		return nil, err
	}
	if reread || old == nil || old.cfg.IsolatePrefixCache != cfg.IsolatePrefixCache || old.cfg.PrefixCacheSecretFile != cfg.PrefixCacheSecretFile {
		if seal, err = newSealer(cfg, seal); err != nil {
			return nil, fmt.Errorf("router: config: %w", err)
		}
	}
	f.Begin(cfg, was)
	for _, m := range f.Models {
		m.Queue.SetOrder(cfg.Queue.Order == config.OrderFair, cfg.Queue.HalfLife)
	}
	s := &snapshot{cfg: cfg, parts: parts, fleet: f, sealer: seal, limits: limitsOf(cfg)}
	s.monitored = monitor.Snapshot{Fleet: f, Timeouts: s.cfg.Timeouts, Stock: parts.Stock, Token: parts.Token, Gone: r.gone(parts.Gone)}
	s.reclaim = reclaim.Snapshot{
		Fleet: f, Limits: cfg.Limits, Timeouts: cfg.Timeouts, Agent: parts.Reclaim, Stock: parts.Stock,
		HandOff: func(ctx context.Context, c *fleet.Pair) error { return r.hands.HandOff(ctx, &s.handshake, c) },
	}
	s.handshake = handshake.Snapshot{
		Config: &s.cfg, Fleet: f, Bodies: s.limits, Stock: parts.Stock, Token: parts.Token, Tickets: parts.Tickets, Reclaim: &s.reclaim,
	}
	s.migration = migration.Snapshot{Config: &s.cfg, Fleet: f, Token: parts.Token, Tickets: parts.Tickets, Reclaim: &s.reclaim}
	s.exchange = exchange.Snapshot{
		Config: &s.cfg, Fleet: f, Planner: parts.Planner, Tickets: parts.Tickets, Token: parts.Token, Reclaim: &s.reclaim,
		Responses: parts.Responses, Observe: parts.Observe,
	}
	s.edge = edge.Snapshot{
		Config: &s.cfg, Fleet: f, BodyLimits: s.limits, Sealer: seal, Authenticator: parts.Clients, Limiter: parts.Limiter, Responses: parts.Responses,
		Refused: parts.Refused, Tracer: parts.Tracer, Exchange: &s.exchange,
	}
	if parts.Reclaim != nil {
		s.monitored.RunOver = parts.Reclaim.Forget
	}
	return s, nil
}

// gone returns what is called when nothing is left of an engine that the configuration lost.
func (r *Router) gone(also func(engine string)) func(engine string) {
	return func(engine string) {
		r.handOffs.Forget(engine)
		if also != nil {
			also(engine)
		}
	}
}

// snapshot returns what the router works by now. Two calls may return two snapshots: what is done for a request goes by the one that it was
// admitted with.
func (r *Router) snapshot() *snapshot { return r.current.Load() }

// Apply has the router work by another configuration, and by these parts in place of those before, from the next request on.
// Requests under way are not touched: they end with the engines they have, also with ones that are not of the configuration
// any more. If it returns an error nothing has changed.
//
// An engine whose entry is the same as before is the same engine, with its connections, its health and its pairs; any other
// of that name is a new one. Files with credentials are read only if none of that name was in use before: Apply is for engines
// that come and go, Reload for a configuration that was read again. Limits.Recent, Limits.Handshakes,
// Limits.HandshakesPerEngine and Timeouts.Probe of handshakes stay those that New was given, and Parts.Log as well.
func (r *Router) Apply(cfg config.Config, parts Parts) error { return r.apply(cfg, parts, false) }

// Reload is Apply, and reads every file with credentials again. An engine whose credential is another is a new one.
func (r *Router) Reload(cfg config.Config, parts Parts) error { return r.apply(cfg, parts, true) }

func (r *Router) apply(cfg config.Config, parts Parts, reread bool) error {
	r.applying.Lock()
	defer r.applying.Unlock()
	old := r.snapshot()
	cfg, err := completed(cfg)
	if err != nil {
		return err
	}
	s, err := r.newSnapshot(cfg, parts, old, reread)
	if err != nil {
		return err
	}
	lost := slices.DeleteFunc(slices.Clone(old.fleet.Engines), func(e *fleet.Engine) bool { return s.fleet.Engine(e.Name) == e })
	for _, e := range lost {
		r.monitor.Lose(e)
	}
	r.current.Store(s)
	r.blocks.SetBound(cfg.Limits.KVIndexBlocks)
	r.exchanges.Tokens.SetLimit(tokenBytes * cfg.Limits.KVIndexBlocks)
	s.fleet.IndexAdapters() // what was reported meanwhile was entered into the old fleet
	for _, e := range lost {
		r.pairs.Forget(e.Name)
		r.log.Info("engine is not of the configuration any more", "engine", e.Name, "in_flight", e.InFlight.Load())
	}
	for _, m := range s.fleet.Models {
		m.Queue.Update()
	}
	r.monitor.Update()
	r.kvEvents.Update()
	r.moves.Update()
	r.pairs.Schedule()
	return nil
}

// limitsOf are those of a configuration that has its defaults.
func limitsOf(cfg config.Config) openai.Limits {
	return openai.Limits{
		N: cfg.Limits.N, Prompts: cfg.Limits.Prompts, Stop: cfg.Limits.Stop, Logprobs: cfg.Limits.Logprobs,
		Strict: cfg.Strict, Media: mediaRules(cfg.Media), Isolate: cfg.IsolatePrefixCache,
	}
}

// mediaRules are what bodies are held to; nil if they may name any host.
func mediaRules(m config.Media) *openai.MediaRules {
	if m.AllowPrivate && len(m.Hosts) == 0 {
		return nil
	}
	return &openai.MediaRules{Private: m.AllowPrivate, Hosts: m.Hosts}
}

// Renewed notes that the records of an engine have changed: it appeared, restarted, published another rank, or
// is gone. What is known of its earlier starts is void, and its pairs shake hands again. It does not block. Names
// that are not of the configuration, and "", change nothing.
func (r *Router) Renewed(name string) {
	f := r.snapshot().fleet
	e := f.Engine(name)
	if e == nil || !e.Publishes {
		return
	}
	if records := f.Records(e); len(records) > 0 {
		if run := records[0].Incarnation; e.Generation.Swap(run.Generation) != run.Generation {
			r.pairs.Retire(run)
		}
		r.log.Info("engine has published", "engine", records[0].ID(), "ranks", len(records))
	} else {
		r.pairs.Forget(name)
		r.log.Info("engine's records are gone", "engine", name)
	}
	r.pairs.Schedule()
}
