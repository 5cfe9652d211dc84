package router

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies"
	"pdrouter/policies/prefixes"
	"pdrouter/router/admission"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/handoff"
	"pdrouter/router/kvevents"
	"pdrouter/router/migration"
	"pdrouter/router/peers"
	"pdrouter/router/reclaim"
	"pdrouter/router/report"
)

// Operations serves /health (the process lives), /ready (it takes requests: not draining, and for some model an
// engine may serve; the body says which, and lists pairs that are not warm), /requests (the latest requests, newest
// first, as JSON; ?id= for one, by request id; ?limit= for some), /requests/live (those under way, oldest first), /may-stop (whether the
// process of an engine may end), and /explain (how the engines of a request would be chosen now).
func (r *Router) Operations() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /ready", r.ready)
	mux.HandleFunc("GET /may-stop", r.mayStop)
	mux.HandleFunc("GET /requests", r.requests)
	mux.HandleFunc("GET /requests/live", r.live)
	mux.HandleFunc("POST /explain/", r.explain)
	return mux
}

// maxCold bounds the pairs in the body of /ready, which is asked for often.
const maxCold = 100

// Stats is what the router knows at one moment. Without most of its pairs it is the body of /ready.
type Stats struct {
	Ready    bool            `json:"ready"`
	Draining bool            `json:"draining"`
	Requests int             `json:"requests"` // under way
	Leaked   uint64          `json:"leaked"`   // how many requests have leaked KV, since the start
	Models   map[string]bool `json:"models"`   // whether requests for it would be served, by its policy and by engines that have answered
	Engines  []EngineStats   `json:"engines"`

	// Pairs is every prefill with every decode engine of its model; in the body of /ready those that are not warm, the first
	// maxCold of them, without those of engines that drain.
	Pairs      []metadata.PairState `json:"pairs"`
	PairsTotal int                  `json:"pairs_total"`
	PairsWarm  int                  `json:"pairs_warm"`

	Sources []StaleSource `json:"stale_sources,omitempty"`

	Handshakes handshake.Stats            `json:"-"`
	Prefixes   *prefixes.Stats            `json:"-"`                    // nil: no policy looks at prefixes
	Migration  *migration.Stats           `json:"migration,omitempty"`  // nil: conversations are not kept
	KVEvents   []kvevents.Stats           `json:"-"`                    // of engines whose blocks are followed
	TokenBytes int                        `json:"-"`                    // of what was learned of their prompts' token ids
	Moved      []report.Moved             `json:"-"`                    // by pairs of engines with a data plane
	HandOffs   []handoff.PairStats        `json:"-"`                    // of pairs that have had some lately
	SlowPairs  []handoff.PairStats        `json:"slow_pairs,omitempty"` // those whose hand-offs are slow
	Queues     []QueueStats               `json:"-"`
	Retries    []RetryStats               `json:"-"`
	Reclaimed  []reclaim.Freed            `json:"-"`                    // KV that ended requests had leaked and that was freed
	BodyBytes  int64                      `json:"-"`                    // held for request bodies
	Panics     uint64                     `json:"-"`                    // that were outlived, of what runs beside requests
	Foreign    uint64                     `json:"-"`                    // reports of transfers that were not their sender's to make
	Background int                        `json:"-"`                    // background responses that count against their callers' limits
	PanicModes []fleet.PanicMode          `json:"panic_mode,omitempty"` // where engines are used though they are out
	PairsOut   []fleet.PairOut            `json:"pairs_out,omitempty"`
	Peers      *peers.Stats               `json:"-"` // nil: what other gateways have is not asked for
	Forecasts  map[string]policies.Demand `json:"-"` // by model, of those whose policy prices paths
	Scalings   []fleet.Scaling            `json:"-"` // of the same models
}

// StaleSource is a source of engines that cannot be read: what it had last stays in use, or its engines are drained.
type StaleSource struct {
	Model      string  `json:"model"`
	List       string  `json:"list"` // prefill, decode or engines
	Source     string  `json:"source"`
	Why        string  `json:"why"`
	AgeSeconds float64 `json:"age_seconds,omitempty"` // since it was read last; 0 if it never was
}

// EngineStats is one engine of a Stats.
type EngineStats struct {
	Name        string  `json:"name"`
	Of          string  `json:"of,omitempty"` // the engine that it is a data-parallel rank of
	Up          bool    `json:"up"`
	InFlight    int64   `json:"in_flight"`                     // of this gateway
	Uncollected int64   `json:"uncollected,omitempty"`         // requests whose KV it has and that has not come to decode
	CacheTokens int     `json:"-"`                             // that its prefix cache holds; 0 if it has not said that, or was not asked
	Others      int     `json:"in_flight_elsewhere,omitempty"` // of other gateways, as far as is known
	Events      *bool   `json:"events,omitempty"`              // its event stream is open; nil if it has none
	State       string  `json:"state"`                         // see fleet.Engine.State
	Why         string  `json:"why,omitempty"`                 // why it gets no requests, or fewer
	Share       float64 `json:"share"`                         // of its part of the requests, below 1 in a slow start

	MovesLeft int `json:"moves_left,omitempty"` // conversations that it has yet to give away, as it drains

	Forecast fleet.EngineForecast `json:"forecast"`           // what it has to do
	Unrouted *fleet.UnroutedLoad  `json:"unrouted,omitempty"` // of that, what no gateway has sent; nil if it does not report that

	Leaked      map[string]int `json:"leaked_blocks,omitempty"`       // blocks that it holds for ended requests, by cause
	MaybeLeaked int            `json:"maybe_leaked_blocks,omitempty"` // blocks that it may hold for ended requests
	Pins        bool           `json:"pins,omitempty"`                // its run pins the blocks of what it has answered

	// What hand-offs to it show; nil if it has received none.
	HandOffs *handoff.EngineStats `json:"hand_offs,omitempty"`

	Ejections map[string]uint64 `json:"-"` // how often it was taken out though it can be reached, by reason
}

// QueueStats is the queue of one model.
type QueueStats struct {
	Model string
	admission.Stats
}

// RetryStats is what came of one model's budget of retries, since the start.
type RetryStats struct {
	Model         string
	Made, Refused uint64 // retries that were begun; requests that failed as there might be no more
}

// pressureOf tells of every model's queue and retries, by name.
func pressureOf(f *fleet.Fleet) (queues []QueueStats, retries []RetryStats) {
	for _, name := range slices.Sorted(maps.Keys(f.Models)) {
		m := f.Models[name]
		queues = append(queues, QueueStats{Model: name, Stats: m.Queue.Stats()})
		made, refused := m.Retries.Counts()
		retries = append(retries, RetryStats{Model: name, Made: made, Refused: refused})
	}
	return queues, retries
}

// Stats reports whether requests are taken, and what is known of the engines.
func (r *Router) Stats() Stats {
	current, now := r.snapshot(), time.Now()
	out := Stats{
		Draining: r.edge.Draining(), Requests: r.exchanges.Count(), Leaked: r.reclaim.Leaks.Requests.Load(), Panics: r.tasks.Panics(), BodyBytes: r.edge.BodyBytes(), Models: make(map[string]bool, len(current.fleet.Models)),
		Engines: make([]EngineStats, 0, len(current.fleet.Engines)), Pairs: r.Pairs(),
		Handshakes: r.pairs.Stats(), Moved: r.report.Transfers.Totals(), Reclaimed: r.reclaim.Leaks.Freed(), Foreign: r.report.Transfers.Rejected(), Background: r.backgrounds.Leases(), KVEvents: r.kvEvents.Stats(),
		TokenBytes: r.exchanges.Tokens.Bytes(), HandOffs: r.handOffs.Pairs(now),
	}
	for _, p := range out.HandOffs {
		if p.Slow {
			out.SlowPairs = append(out.SlowPairs, p)
		}
	}
	if r.peers != nil {
		s := r.peers.Stats()
		out.Peers = &s
	}
	if current.cfg.Migration.On() {
		out.Migration = new(r.moves.Stats())
	}
	if current.fleet.Prefixes != nil {
		s := current.fleet.Prefixes.Stats()
		out.Prefixes = &s
	}
	out.PairsTotal = len(out.Pairs)
	out.PanicModes, out.PairsOut = current.fleet.Ejected(now)
	for _, p := range out.Pairs {
		if p.Warm {
			out.PairsWarm++
		}
	}
	if r.stale != nil {
		out.Sources = r.stale()
	}
	for name, m := range current.fleet.Models {
		out.Models[name] = current.fleet.Serves(m)
		out.Ready = out.Ready || out.Models[name] && !out.Draining
	}
	out.Queues, out.Retries = pressureOf(current.fleet)
	out.Forecasts, out.Scalings = current.fleet.Demands(now), current.fleet.Scalings(now)
	for _, e := range current.fleet.Engines {
		s := EngineStats{Name: e.Name, Of: e.RankOf, Up: !e.Down.Load(), Uncollected: e.Uncollected.Load(), InFlight: e.InFlight.Load(), Others: e.Elsewhere(), CacheTokens: e.CacheSize().Tokens(), Ejections: map[string]uint64{}, Leaked: r.reclaim.Leaks.Blocked(e, now), MaybeLeaked: r.reclaim.Leaks.Possible(e, now), Pins: e.Pins()}
		s.Forecast, s.Unrouted, s.MovesLeft = e.ForecastAt(now), e.UnroutedAt(now), r.moves.Remaining(e)
		s.HandOffs = r.handOffs.Engine(e.Name)
		s.State, s.Why, s.Share = e.State(now, *current.cfg.Health.SlowStart)
		for i := health.InUse + 1; i < health.Ejections; i++ {
			s.Ejections[i.String()] = e.Health.EjectedFor(i)
		}
		if e.ControlURL != "" {
			followed := e.EventsOpen.Load()
			s.Events = &followed
		}
		out.Engines = append(out.Engines, s)
	}
	return out
}

// Ready reports whether requests are taken: the gateway does not drain, and for some model an engine may serve.
func (r *Router) Ready() bool { return !r.edge.Draining() && r.snapshot().serves() }

// serves reports whether for some model an engine may serve.
func (s *snapshot) serves() bool {
	for _, m := range s.fleet.Models {
		if s.fleet.Serves(m) {
			return true
		}
	}
	return false
}

// AskedReady reports whether a client has asked for the readiness, and so looks at the end of it.
func (r *Router) AskedReady() bool { return r.edge.AskedReady() }

// Pairs returns what is known of every prefill engine with every decode engine of its model, model by model.
func (r *Router) Pairs() []metadata.PairState {
	return r.snapshot().fleet.PairStates()
}

// Paired reports whether two engines, in either order, stand as prefill and decode of one model in the configuration.
func (r *Router) Paired(x, y string) bool { return r.snapshot().fleet.Paired(x, y) }

func (r *Router) ready(w http.ResponseWriter, _ *http.Request) {
	state := r.Stats()
	state.Pairs = slices.DeleteFunc(state.Pairs, func(p metadata.PairState) bool {
		drained := strings.HasSuffix(p.Why, fleet.WhyDrained)
		if drained {
			state.PairsTotal--
		}
		return p.Warm || drained
	})
	state.Pairs = state.Pairs[:min(len(state.Pairs), maxCold)]
	status := http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, state)
}

func (r *Router) requests(w http.ResponseWriter, req *http.Request) {
	id := req.URL.Query().Get("id")
	limit, ok := limitOf(req)
	if !ok {
		http.Error(w, "limit is not a number above 0", http.StatusBadRequest)
		return
	}
	list := r.report.Latest(id)
	if id == "" {
		if limit > 0 {
			list = list[:min(limit, len(list))]
		}
		shown := make([]report.Shown, len(list))
		for i := range list {
			shown[i] = list[i].Shown()
		}
		writeJSON(w, http.StatusOK, shown)
		return
	}
	if len(list) == 0 {
		http.Error(w, "no such request", http.StatusNotFound)
		return
	}
	writeJSON(w, http.StatusOK, list[0].Shown())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
