package router

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies/prefixes"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
	"pdrouter/router/upstream"
)

// fleetParts are what a fleet is made of besides its configuration.
type fleetParts struct {
	planner    Planner
	records    Records
	handshakes *metadata.Pairs
	log        *slog.Logger
}

// fleet is every engine of one configuration, by model. The set never changes; what is known of each does.
type fleet struct {
	models  map[string]*model
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

// engine is one engine and what the router knows of it. It is safe for concurrent use.
type engine struct {
	name      string
	rankOf    string // the entry's name; "" of an engine that is no data-parallel rank
	origin    origin
	model     string
	control   string
	publishes bool // records of its own, with its generation in them
	up        *upstream.Client
	client    *http.Client               // of the control routes; nil: the router's
	tls       atomic.Pointer[tls.Config] // of connections to come; nil: the default
	header    []upstream.Field           // sent with every request: content type, accept, the engine's own credential
	inFlight  atomic.Int64
	streaming atomic.Int64         // of them, streams that have brought tokens
	supplied  atomic.Int64         // of them, decode legs that are no streams and have their KV, as a look has shown
	overdue   atomic.Int64         // of them, decode legs whose KV should have come, and that have not shown it
	backlog   atomic.Int64         // tokens of prompts that it has yet to compute, of models whose policy looks at that
	held      atomic.Pointer[held] // as what it stands in the index of prefixes; nil if it does not
	failures  atomic.Int32         // connect failures and failed health checks in a row
	silence   atomic.Int64         // when a connection that was not answered was counted last, in Unix nanoseconds
	limit     atomic.Int32         // of them, from which the engine is unusable
	down      atomic.Bool
	refuses   atomic.Bool // its last failure was a refused connection: nothing listens there
	progress  atomic.Bool // a request on it has made progress since the last health check began
	proven    atomic.Bool // it has answered
	vitals    health.State
	handing   handing // of a prefill engine
	loads     loads
	draining  atomic.Bool   // it takes no more requests
	recheck   chan struct{} // has room for one: its health is to be checked now
	relist    chan struct{} // the same: it is up again, and may serve something else
	followed  atomic.Bool   // its event stream is open
	streams   atomic.Uint64 // how often that stream began, broke or had a gap
	// generation counts the starts of an engine that does not publish its own: it grows whenever another run of the
	// engine is seen, so that whatever was known of its earlier start is void.
	generation atomic.Uint64
	coord      atomic.Pointer[connector.PrefillEndpoint] // of a stock prefill engine that has answered; nil until then
	bootstrap  connector.Bootstrap                       // connector sglang; without a room
	side       *side                                     // of a stock engine; nil of others
	enrolment  atomic.Pointer[enrolment]                 // connector kvplane; of the run that was last given a ticket
	reported   atomic.Pointer[reported]                  // what it says that it serves; nil until it has
	untold     atomic.Bool                               // the last time it could not be read, which was logged
}

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
					e, err := newEngine(ec, k, m, list.role, cfg, f.secrets)
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
	}
	if len(keyless) > 0 {
		return nil, errors.Join(keyless...)
	}
	f.indexAdapters(cfg.Models)
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
}

// origin is all of a configuration that an engine was made from: engines of one origin are the same.
type origin struct {
	entry     config.Engine
	model     string
	connector connector.Connector
	role      metadata.Role
	key       string // what stood in the entry's key file
	rank      int    // data-parallel
}

func newEngine(ec config.Engine, rank int, m *model, role metadata.Role, cfg config.Config, keys *config.Secrets) (*engine, error) {
	conn := m.conn
	from := origin{entry: ec, model: m.name, connector: conn, role: role}
	from.entry.Drain = false
	up, err := upstream.New(ec.URL, upstream.Config{})
	if err != nil {
		return nil, err
	}
	e := &engine{name: ec.Name, model: m.name, control: strings.TrimSuffix(ec.Control, "/"), up: up, recheck: make(chan struct{}, 1), relist: make(chan struct{}, 1)}
	if ec.TLS != (config.TLS{}) {
		e.client = newControlClient(e.dialControl)
	}
	e.bound(cfg)
	e.generation.Store(1)
	e.draining.Store(ec.Drain)
	e.publishes = conn.Traits().Publishes
	e.bootstrap = connector.BootstrapOf(ec.URL, ec.BootstrapPort)
	if conn.Traits().Stock != nil {
		e.side = newSide(conn, role, ec)
	}
	e.header = []upstream.Field{{Name: "Content-Type", Value: "application/json"}}
	if ec.KeyFile != "" {
		if from.key, err = keys.Read("key_file", ec.KeyFile); err != nil {
			return nil, err
		}
		e.header = append(e.header, upstream.Field{Name: "Authorization", Value: "Bearer " + from.key})
	}
	if ec.DataParallel > 1 {
		from.rank = rank
		e.header = append(e.header, upstream.Field{Name: rankHeader, Value: strconv.Itoa(rank)})
	}
	e.origin = from
	return e, nil
}

// bound has the engine go by this configuration's bounds, whichever it was made from.
func (e *engine) bound(cfg config.Config) {
	e.limit.Store(int32(cfg.Limits.Failures))
	e.up.SetLimits(cfg.Timeouts.Connect, cfg.Limits.IdlePer)
}

// usable reports whether the engine may be given requests.
func (e *engine) usable() bool { return !e.down.Load() && !e.draining.Load() }

// incarnation names the run of a stock engine that the router knows of.
func (e *engine) incarnation() metadata.Incarnation {
	return metadata.Incarnation{Engine: e.name, Generation: e.generation.Load()}
}

// couple returns the engines of a pair, nil if they are no couple.
func (f *fleet) couple(pair metadata.Pair) *couple {
	return f.paired[[2]string{pair.Prefill.Engine, pair.Decode.Engine}]
}

// engine returns the engine of that name, nil if there is none.
func (f *fleet) engine(name string) *engine { return f.named[name] }

func (f *fleet) close() {
	for _, e := range f.engines {
		e.up.Close()
		if e.client != nil {
			e.client.CloseIdleConnections()
		}
	}
}

// rankHeader is how stock engines are told which of their data-parallel ranks is to serve a request. What a client sends under
// this name never reaches them.
const rankHeader = "X-Data-Parallel-Rank"
