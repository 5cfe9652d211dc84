// Package fleet holds the engines of one configuration, their models and their pairs, and selects engines for requests.
//
// It owns what is known of each engine: its identity and address, its requests in flight, its reachability and health (package
// fleet/health has the rules), its current run, and the prompt prefixes that it received. New makes a Fleet from a configuration and the
// previous Fleet. An engine with an unchanged entry stays the same Engine. A Selection takes a snapshot for one request and asks the
// policy. Other packages keep their own data for each engine in a PerEngine.
//
// It sends nothing to engines and starts no goroutine. An exchange asks it for engines (Selection). It learns from legs (package leg), and
// from health checks and side channels (package monitor).
//
// Read selection.go first, for how a request gets its engines, then prefix.go for prompts, pair.go for pairs, and engine.go for what is known of one
// engine.
package fleet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/policies/forecast"
	"pdrouter/policies/prefixes"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/tokens"
	"pdrouter/router/upstream"
)

// Planner chooses the engines of a request. It must not block and be safe for concurrent use.
type Planner interface {
	Choose(policies.Request, policies.Fleet, policies.Draw) policies.Choice
}

// Records is the local copy of the engines' metadata: Engine never waits. It must be safe for concurrent use.
type Records interface {
	Engine(name string) ([]metadata.Record, bool)
}

// Parts are what a fleet is made of besides its configuration.
type Parts struct {
	Planner    Planner
	Shadow     Planner                                  // asked too, without effect; nil: none is
	Records    Records                                  // nil: no engine that publishes can be paired
	Handshakes *handshake.Registry                      // which pairs have shaken hands
	Blocks     *blocks.Index                            // what engines say that they hold; nil: nobody asks
	Tokens     *tokens.Map                              // the token ids of chats, which are looked for there; nil: none are known
	Troubled   func() func(prefill, decode string) bool // which hand-offs go wrong now; may be nil, and so may what it returns
	Control    *http.Client                             // for the control routes of engines without TLS settings of their own
	Log        *slog.Logger
}

// Fleet is every engine of one configuration, by model. The set never changes; what is known of each does.
type Fleet struct {
	Models  map[string]*Model
	ordered []*Model // in the order of the configuration
	Engines []*Engine
	Pairs   []*Pair // of the models whose engines shake hands, model by model
	named   map[string]*Engine
	pairs   map[[2]string]*Pair // by the names of prefill and decode
	drains  map[string]bool     // the names of those that take no more requests

	placements map[string]config.Placement // by name
	kvEvents   map[string]config.KVEvents  // by name

	health     config.Health
	planner    Planner
	shadow     Planner // nil: there is none
	published  Records
	troubled   func() func(prefill, decode string) bool // nil: nobody knows
	handshakes *handshake.Registry
	log        *slog.Logger
	Prefixes   *prefixes.Index // nil: no model's policy looks at prefixes
	prompts    *promptSearch
	blocks     *blocks.Index
	tokens     *tokens.Map

	adapters adapters
	Secrets  *config.Secrets
	secured  map[*Engine]*tls.Config // TLS settings of the engines that have any
	ranks    map[string][]*Engine    // by the name of the engine that they are the data-parallel ranks of
}

// Model is one served model.
type Model struct {
	Name                  string
	Connector             connector.Connector
	Prefill               []*Engine
	Decode                []*Engine // the aggregated engines for connector none
	Pairs                 []*Pair   // prefill by prefill, also of an engine of either role with itself; empty if the engines need no handshake
	turn                  atomic.Uint64
	Retries               *admission.RetryBudget  // outlives a reload
	ForwardsAuthorization bool                    // its engines receive the clients' credentials
	ForwardsTokenIDs      bool                    // decode legs carry the token ids that prefill has answered
	FirstTokenOfPrefill   bool                    // clients get the token that prefill has sampled, where that is exact
	usesPrefixes          [roleCount]bool         // the policy looks at what the role's engines have of a prompt
	learned               *learnedPrompts         // outlives a reload
	publishes             bool                    // one of its engines at least publishes its blocks
	usesSessions          bool                    // the policy looks at which session a request is of
	usesAdapters          bool                    // the policy looks at which adapters engines have loaded
	Forecast              *forecast.Model         // outlives a reload
	Prices                bool                    // the policy prices paths, by what is forecast
	objective             policies.Objective      // that requests are to keep
	scaling               *scalingSignals         // outlives a reload
	panicMode             [roleCount]atomic.Bool  // the role's engines are used although they are ejected
	comparedAt            [roleCount]atomic.Int64 // when their times were compared, in nanoseconds
	Queue                 *admission.Queue        // outlives a reload

	inFlight, perEngine, queueLength int // requests with all its engines, or with each; requests that wait

	rooms roomPlanner // its requests wait until this says that engines have room; nil: they do not
	again *time.Timer // until its queue looks again; the queue's lock guards it
	looks time.Time   // when that is; likewise
	asked time.Time   // until when asking whether there is room has taken its part of the time; likewise
}

// Places is how many of the model's requests may be with engines at once: none while no engine takes requests and one may come back.
// If none will come back, requests do not wait: they fail at once.
func (m *Model) Places(running, waiting int) int {
	takers, comes := m.takers()
	most := max(1, takers) * m.perEngine
	switch {
	case takers == 0 && comes:
		return 0
	case m.inFlight > 0:
		most = m.inFlight
	}
	if m.rooms != nil {
		most = min(most, m.oneMore(running, waiting))
	}
	return most
}

// takers counts the model's decode engines that may receive requests. comes reports that others may come back: they are down, but have not
// refused a connection.
func (m *Model) takers() (n int, comes bool) {
	for _, e := range m.Decode {
		switch {
		case e.Usable():
			n++
		case !e.Draining.Load() && !e.refuses.Load():
			comes = true
		}
	}
	return n, comes
}

// either are the lists of engines of either role: where no engine hands anything off, they decode.
func (m *Model) either() []*[]*Engine {
	if m.Connector.Traits().Mode == dispatch.Alone {
		return []*[]*Engine{&m.Decode}
	}
	return []*[]*Engine{&m.Prefill, &m.Decode}
}

// PairAt returns the pair of the engines with these indices. Only models whose engines shake hands have pairs.
func (m *Model) PairAt(p, d int) *Pair { return m.Pairs[p*len(m.Decode)+d] }

// New returns the fleet of a configuration. Engines, pairs and models that was has too are carried over with all that is known of them;
// was may be empty. Files are read through secrets. The new fleet takes effect with Begin.
func New(cfg config.Config, parts Parts, was *Fleet, secrets *config.Secrets) (*Fleet, error) {
	f := &Fleet{Models: make(map[string]*Model, len(cfg.Models)), named: map[string]*Engine{}, pairs: map[[2]string]*Pair{}, drains: map[string]bool{}, placements: map[string]config.Placement{}, kvEvents: map[string]config.KVEvents{},
		health: cfg.Health, planner: parts.Planner, shadow: parts.Shadow, troubled: parts.Troubled, published: parts.Records, handshakes: parts.Handshakes, log: parts.Log, prompts: was.prompts, blocks: parts.Blocks, tokens: parts.Tokens,
		Secrets: secrets, secured: map[*Engine]*tls.Config{}, ranks: map[string][]*Engine{}}
	if f.prompts == nil {
		f.prompts = new(promptSearch)
	}
	var unread []error
	for i, mc := range cfg.Models {
		m := &Model{Name: mc.Name, Connector: connector.Named(mc.Connector), ForwardsAuthorization: mc.ForwardAuthorization, ForwardsTokenIDs: mc.Traits().TakesTokenIDs && !mc.RetokenizeOnDecode, FirstTokenOfPrefill: mc.FirstToken == config.FirstTokenPrefill, Retries: new(admission.RetryBudget), Queue: new(admission.Queue), learned: newLearnedPrompts(), Forecast: forecast.NewModel(), scaling: new(scalingSignals), inFlight: mc.MaxConcurrentRequests, perEngine: cfg.Limits.MaxConcurrentRequests, queueLength: *cfg.Limits.Queue}
		if old := was.Models[m.Name]; old != nil {
			m.turn.Store(old.turn.Load())
			m.Retries, m.Queue, m.learned, m.Forecast, m.scaling = old.Retries, old.Queue, old.learned, old.Forecast, old.scaling
		}
		for _, list := range []struct {
			key  string
			from []config.Engine
			to   []*[]*Engine
			role metadata.Role
		}{
			{"prefill", mc.Prefill, []*[]*Engine{&m.Prefill}, metadata.Prefill}, {"decode", mc.Decode, []*[]*Engine{&m.Decode}, metadata.Decode},
			{"engines", mc.Engines, m.either(), metadata.Both},
		} {
			for j, entry := range list.from {
				secure, err := entry.TLS.Load(f.Secrets)
				if err != nil {
					unread = append(unread, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err))
					continue
				}
				var up *upstream.Client // one for all ranks
				for k, ec := range entry.Ranks() {
					e, err := newEngine(ec, k, m, list.role, cfg, f.Secrets, parts.Control)
					if errors.As(err, new(*config.KeyError)) {
						unread = append(unread, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err))
						break
					}
					if err != nil {
						return nil, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err)
					}
					if ec.Name != entry.Name {
						e.RankOf = entry.Name
					}
					if was.named != nil {
						e.Health.Reset(time.Now()) // no slow start for engines that are present when the gateway starts
					}
					if old := was.named[e.Name]; old != nil {
						if old.Origin == e.Origin {
							e = old
						} else { // it does not take over the pairs of the old one
							e.Generation.Store(old.Generation.Load() + 1)
						}
					}
					if up == nil {
						up = e.Upstream
					} else if e != was.named[e.Name] {
						e.Upstream = up
					}
					if secure != nil {
						f.secured[e] = secure
					}
					for _, to := range list.to {
						*to = append(*to, e)
					}
					f.Engines = append(f.Engines, e)
					f.named[e.Name] = e
					if e.RankOf != "" {
						f.ranks[e.RankOf] = append(f.ranks[e.RankOf], e)
					}
					m.publishes = m.publishes || ec.KVEvents.Endpoint != ""
					f.drains[e.Name], f.placements[e.Name], f.kvEvents[e.Name] = ec.Drain, ec.Placement, ec.KVEvents
				}
			}
		}
		if m.Connector.Traits().Handshakes {
			for _, p := range m.Prefill {
				for _, d := range m.Decode {
					c := was.pairs[[2]string{p.Name, d.Name}]
					if c == nil || c.Model != m.Name || c.Connector != m.Connector || c.Prefill != p || c.Decode != d {
						c = &Pair{Model: m.Name, Connector: m.Connector, Prefill: p, Decode: d, revisions: revisionsFit(p, d)}
					}
					if m.Pairs = append(m.Pairs, c); p != d {
						f.Pairs = append(f.Pairs, c)
						f.pairs[[2]string{p.Name, d.Name}] = c
					}
				}
			}
		}
		f.Models[m.Name] = m
		f.ordered = append(f.ordered, m)
	}
	if len(unread) > 0 {
		return nil, errors.Join(unread...)
	}
	f.IndexAdapters()
	f.noteSessions()
	f.noteAdapterUse()
	f.notePrices()
	f.noteObjectives(cfg.Queue.ByObjective)
	f.Prefixes = f.newIndex(cfg.Limits.PrefixIndexEntries, was.Prefixes)
	return f, nil
}

// Begin makes this fleet the current one, in place of was. It applies the limits, TLS settings and draining of cfg to its engines.
func (f *Fleet) Begin(cfg config.Config, was *Fleet) {
	for _, m := range f.Models {
		m.Queue.SetLimits(m, m.queueLength)
		m.Queue.SetReady(m.rooms != nil)
		m.Retries.SetLimits(*cfg.Limits.RetryPercent, *cfg.Limits.RetryFloor)
	}
	for e, t := range f.secured {
		e.secure(t)
	}
	for _, e := range f.Engines {
		e.setLimits(cfg)
		e.placement.Store(placementOf(f.placements[e.Name]))
		e.kvEvents.Store(new(f.kvEvents[e.Name]))
		if drains := f.drains[e.Name]; e.Draining.Swap(drains) && !drains {
			e.Health.Reset(time.Now())
		}
	}
	f.prompts.index.Store(f.Prefixes)
	if f.Prefixes != was.Prefixes {
		for _, e := range f.Engines {
			e.forgetPrompts(nil)
		}
	}
	for _, e := range was.Engines {
		if f.Engine(e.Name) != e {
			e.forgetPrompts(gone)
			e.forecast.Gone()
		}
	}
}

// PairOf returns the pair of two runs; nil if the fleet has none of these engines.
func (f *Fleet) PairOf(pair metadata.Pair) *Pair {
	return f.pairs[[2]string{pair.Prefill.Engine, pair.Decode.Engine}]
}

// Paired reports whether two engines, in either order, stand as prefill and decode of one model.
func (f *Fleet) Paired(x, y string) bool {
	return f.pairs[[2]string{x, y}] != nil || f.pairs[[2]string{y, x}] != nil
}

// Find returns the model that a client names: by its own name, or by that of an adapter, which is returned too.
func (f *Fleet) Find(name string) (m *Model, adapter string) {
	if m = f.Models[name]; m != nil {
		return m, ""
	}
	return f.adapters.of(name), name
}

// Engine returns the engine of that name, nil if there is none.
func (f *Fleet) Engine(name string) *Engine { return f.named[name] }

// Busy reports whether requests need an engine or one of its data-parallel ranks; false if there is none of that name.
func (f *Fleet) Busy(engine string) bool {
	if e := f.Engine(engine); e != nil {
		return e.Busy()
	}
	return slices.ContainsFunc(f.ranks[engine], func(e *Engine) bool { return e.Busy() })
}

// Close closes idle connections to all engines.
func (f *Fleet) Close() {
	for _, e := range f.Engines {
		e.Upstream.Close()
		e.ControlClient.CloseIdleConnections()
	}
}
