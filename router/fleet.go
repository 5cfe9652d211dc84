package router

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/connector"
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

// fleetParts are what a fleet is made of besides its configuration.
type fleetParts struct {
	planner    Planner
	records    Records
	handshakes *metadata.Pairs
	control    *http.Client // for the control routes of engines without TLS settings of their own
	log        *slog.Logger
}

// fleet is every engine of one configuration, by model. The set never changes; what is known of each does.
type fleet struct {
	models  map[string]*model
	ordered []*model // as the configuration names them
	engines []*engine
	couples []*couple // of the models whose engines shake hands, model by model
	named   map[string]*engine
	paired  map[[2]string]*couple // by the names of prefill and decode
	drains  map[string]bool       // the names of those that take no more requests

	health     config.Health
	planner    Planner
	published  Records         // nil: no engine that publishes can be paired
	handshakes *metadata.Pairs // which pairs have shaken hands
	log        *slog.Logger
	index      *prefixes.Index // nil: no model's policy looks at prefixes
	prompts    *prompts

	adapters adapters
	secrets  *config.Secrets
	secured  map[*engine]*tls.Config // what TLS each is to be spoken to with; not of those without
	ranks    map[string][]*engine    // by the name of the engine that they are the data-parallel ranks of
}

// model is one served model.
type model struct {
	name     string
	conn     connector.Connector
	prefill  []*engine
	decode   []*engine // the aggregated engines for connector none
	couples  []*couple // prefill by prefill; empty if the engines need no handshake
	turn     atomic.Uint64
	retries  *admission.RetryBudget // outlives a reload
	forwards bool                   // its engines are given the clients' credentials
	looks    [roles]bool            // the policy looks at what the role's engines have of a prompt
	panics   [roles]atomic.Bool     // the role's engines are used though they are out
	judged   [roles]atomic.Int64    // when their times were compared, in nanoseconds
	queue    *admission.Queue       // outlives a reload

	inFlight, perEngine, queueLength int // requests with all its engines, or with each; requests that wait
}

// Places is how many of the model's requests may be with engines at once: none while no engine takes requests and one may come back.
// Where none will, requests need not wait: they are told so.
func (m *model) Places() int {
	takers, comes := m.takers()
	switch {
	case takers == 0 && comes:
		return 0
	case m.inFlight > 0:
		return m.inFlight
	}
	return max(1, takers) * m.perEngine
}

// takers counts the model's decode engines that may be given requests. comes reports that others may come back: they are down, but not as
// nothing listens there.
func (m *model) takers() (n int, comes bool) {
	for _, e := range m.decode {
		switch {
		case e.usable():
			n++
		case !e.draining.Load() && !e.refuses.Load():
			comes = true
		}
	}
	return n, comes
}

// couple returns the prefill and the decode engine with these indices; only where engines shake hands.
func (m *model) couple(p, d int) *couple { return m.couples[p*len(m.decode)+d] }

// newFleet makes what the configuration names, and takes over what was there already; was may be empty. Files whose contents are
// known are not read.
func newFleet(cfg config.Config, parts fleetParts, was *fleet, secrets *config.Secrets) (*fleet, error) {
	f := &fleet{models: make(map[string]*model, len(cfg.Models)), named: map[string]*engine{}, paired: map[[2]string]*couple{}, drains: map[string]bool{},
		health: cfg.Health, planner: parts.planner, published: parts.records, handshakes: parts.handshakes, log: parts.log, prompts: was.prompts,
		secrets: secrets, secured: map[*engine]*tls.Config{}, ranks: map[string][]*engine{}}
	if f.prompts == nil {
		f.prompts = new(prompts)
	}
	var keyless []error
	for i, mc := range cfg.Models {
		m := &model{name: mc.Name, conn: connector.Named(mc.Connector), forwards: mc.ForwardAuthorization, retries: new(admission.RetryBudget), queue: new(admission.Queue), inFlight: mc.InFlight, perEngine: cfg.Limits.InFlight, queueLength: *cfg.Limits.Queue}
		if old := was.models[m.name]; old != nil {
			m.turn.Store(old.turn.Load())
			m.retries, m.queue = old.retries, old.queue
		}
		for _, list := range []struct {
			key  string
			from []config.Engine
			to   *[]*engine
			role metadata.Role
		}{
			{"prefill", mc.Prefill, &m.prefill, metadata.Prefill}, {"decode", mc.Decode, &m.decode, metadata.Decode},
			{"engines", mc.Engines, &m.decode, metadata.Both},
		} {
			for j, entry := range list.from {
				secure, err := entry.TLS.Load(f.secrets)
				if err != nil {
					keyless = append(keyless, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err))
					continue
				}
				var up *upstream.Client // one for all ranks
				for k, ec := range entry.Ranks() {
					e, err := newEngine(ec, k, m, list.role, cfg, f.secrets, parts.control)
					if errors.As(err, new(*config.KeyError)) {
						keyless = append(keyless, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err))
						break
					}
					if err != nil {
						return nil, fmt.Errorf("router: models[%d].%s[%d]: %w", i, list.key, j, err)
					}
					if ec.Name != entry.Name {
						e.rankOf = entry.Name
					}
					if was.named != nil {
						e.vitals.Reset(time.Now()) // those that are there from the start have nobody to share with
					}
					if old := was.named[e.name]; old != nil {
						if old.origin == e.origin {
							e = old
						} else { // pairs of the other one are not its own
							e.generation.Store(old.generation.Load() + 1)
						}
					}
					if up == nil {
						up = e.up
					} else if e != was.named[e.name] {
						e.up = up
					}
					if secure != nil {
						f.secured[e] = secure
					}
					*list.to = append(*list.to, e)
					f.engines = append(f.engines, e)
					f.named[e.name] = e
					if e.rankOf != "" {
						f.ranks[e.rankOf] = append(f.ranks[e.rankOf], e)
					}
					f.drains[e.name] = ec.Drain
				}
			}
		}
		if m.conn.Traits().Handshakes {
			for _, p := range m.prefill {
				for _, d := range m.decode {
					c := was.paired[[2]string{p.name, d.name}]
					if c == nil || c.model != m.name || c.conn != m.conn || c.prefill != p || c.decode != d {
						c = &couple{model: m.name, conn: m.conn, prefill: p, decode: d}
					}
					m.couples = append(m.couples, c)
				}
			}
			f.couples = append(f.couples, m.couples...)
			for _, c := range m.couples {
				f.paired[[2]string{c.prefill.name, c.decode.name}] = c
			}
		}
		f.models[m.name] = m
		f.ordered = append(f.ordered, m)
	}
	if len(keyless) > 0 {
		return nil, errors.Join(keyless...)
	}
	f.indexAdapters()
	f.index = f.looking(cfg.Limits.PrefixIndexEntries, was.index)
	return f, nil
}

// begin has the engines and the models go by this fleet, which takes the place of was.
func (f *fleet) begin(cfg config.Config, was *fleet) {
	for _, m := range f.models {
		m.queue.SetLimits(m, m.queueLength)
		m.retries.SetLimits(*cfg.Limits.RetryPercent, *cfg.Limits.RetryFloor)
	}
	for e, t := range f.secured {
		e.secure(t)
	}
	for _, e := range f.engines {
		e.bound(cfg)
		if drains := f.drains[e.name]; e.draining.Swap(drains) && !drains {
			e.vitals.Reset(time.Now())
		}
	}
	f.prompts.index.Store(f.index)
	if f.index != was.index {
		for _, e := range f.engines {
			e.forget(nil)
		}
	}
	for _, e := range was.engines {
		if f.engine(e.name) != e {
			e.forget(gone)
		}
	}
}

// couple returns the engines of a pair, nil if they are no couple.
func (f *fleet) couple(pair metadata.Pair) *couple {
	return f.paired[[2]string{pair.Prefill.Engine, pair.Decode.Engine}]
}

// engine returns the engine of that name, nil if there is none.
func (f *fleet) engine(name string) *engine { return f.named[name] }

// inFlight returns how many legs an engine works on, all its data-parallel ranks together; 0 if there is none of that name.
func (f *fleet) inFlight(engine string) int64 {
	if e := f.engine(engine); e != nil {
		return e.inFlight.Load()
	}
	n := int64(0)
	for _, e := range f.ranks[engine] {
		n += e.inFlight.Load()
	}
	return n
}

func (f *fleet) close() {
	for _, e := range f.engines {
		e.up.Close()
		e.client.CloseIdleConnections()
	}
}
