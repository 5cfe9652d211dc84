package router

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet"
	"pdrouter/router/handoff"
)

// maxPairs bounds the pairs of a Status, and maxLive the requests under way that are listed.
const (
	maxPairs = 200
	maxLive  = 256
)

// Status is what people look at: Stats with the queues, the place of each engine, and the state of pairs.
type Status struct {
	Stats
	Engines []EngineStatus `json:"engines"`
	Queues  []QueueStatus  `json:"queues"`
	// Pairs are the first maxPairs, those that are not ready before the others. PairsTotal counts all.
	Pairs []PairStatus `json:"pairs"`
}

// EngineStatus is one engine of a Status.
type EngineStatus struct {
	EngineStats
	Places       []Place `json:"places"`
	CachedBlocks *int    `json:"cached_blocks,omitempty"` // KV blocks in its prefix cache, by its own events; nil if it publishes none
	// Load is what it says of itself. It is asked only while somebody looks; nil if it has not answered yet, or does not say.
	Load *EngineLoad `json:"load,omitempty"`
}

// EngineLoad is what an engine says of its requests, those of all gateways, and of its KV cache.
type EngineLoad struct {
	Running int      `json:"running"`
	Waiting int      `json:"waiting"`
	KVUse   *float64 `json:"kv_use,omitempty"` // the part of the KV cache that is in use, 0 to 1; nil if it does not say
}

// loadAge is how old a sample of an engine's load may be that is shown.
const loadAge = 15 * time.Second

// loadOf returns what an engine says of itself; nil if that is not known.
func (r *Router) loadOf(e *fleet.Engine) *EngineLoad {
	if e == nil || e.Down.Load() {
		return nil
	}
	l, ok := r.monitor.Look(e, loadAge)
	if !ok {
		return nil
	}
	out := &EngineLoad{Running: l.Running, Waiting: l.Waiting}
	if l.KVUse >= 0 {
		out.KVUse = &l.KVUse
	}
	return out
}

// Place is a list that an engine is in.
type Place struct {
	Model string `json:"model"`
	Role  string `json:"role"` // prefill, decode, or engines for those that serve requests alone
}

// QueueStatus is the queue of one model.
type QueueStatus struct {
	Model    string            `json:"model"`
	InFlight int               `json:"in_flight"` // requests with the engines
	Places   int               `json:"places"`    // requests that may be with the engines
	Waiting  int               `json:"waiting"`
	Tenants  int               `json:"waiting_tenants"`
	Largest  int               `json:"waiting_largest_tenant"` // requests of the tenant with the most
	Drain    float64           `json:"drain_seconds"`          // until what waits and one more have a place, as predicted; 0 if unknown
	Waited   uint64            `json:"waited"`                 // since the start
	Denied   map[string]uint64 `json:"denied"`                 // requests without a place since the start, by reason
}

// PairStatus is one pair.
type PairStatus struct {
	metadata.PairState
	Circuit string `json:"circuit,omitempty"` // open or half_open, if it gets no requests as transfers failed
	Bytes   uint64 `json:"bytes"`             // of KV that the engines reported as moved (connector kvplane), since the start

	// Of its recent hand-offs, if it has had some.
	Slow    bool    `json:"slow,omitempty"`
	Seconds float64 `json:"hand_off_seconds,omitempty"` // in the mean
	Times   float64 `json:"times_as_long,omitempty"`    // as usual; 0 if what is usual is not known
}

// ready reports whether requests can be given to the pair at once, and its hand-offs are as usual.
func (p PairStatus) ready() bool { return p.Pairable && p.Warm && p.Circuit == "" && !p.Slow }

// Status reports all that Stats does and what people ask besides.
func (r *Router) Status() Status {
	s := Status{Stats: r.Stats(), Engines: []EngineStatus{}, Queues: []QueueStatus{}}
	f := r.snapshot().fleet
	places, engines := placesOf(f), map[string]*fleet.Engine{}
	for _, e := range f.Engines {
		engines[e.Name] = e
	}
	cached := map[string]*int{}
	for _, e := range s.KVEvents {
		cached[e.Engine] = &e.Blocks
	}
	for _, e := range s.Stats.Engines {
		s.Engines = append(s.Engines, EngineStatus{e, places[cmp.Or(e.Of, e.Name)], cached[e.Name], r.loadOf(engines[e.Name])})
	}
	for _, q := range s.Stats.Queues {
		s.Queues = append(s.Queues, QueueStatus{Model: q.Model, InFlight: q.InFlight, Places: q.Places, Waiting: q.Waiting, Tenants: q.Tenants, Largest: q.Largest,
			Drain: q.Drain.Seconds(), Waited: q.Waited, Denied: q.Denied})
	}
	s.Pairs = pairsOf(s.Stats)
	return s
}

// placesOf tells in which lists each engine is, by its name; a data-parallel rank is in those of its engine.
func placesOf(f *fleet.Fleet) map[string][]Place {
	out := map[string][]Place{}
	add := func(m *fleet.Model, role string, engines []*fleet.Engine) {
		for _, e := range engines {
			name, p := cmp.Or(e.RankOf, e.Name), Place{m.Name, role}
			if !slices.Contains(out[name], p) {
				out[name] = append(out[name], p)
			}
		}
	}
	for _, m := range f.Models {
		if len(m.Prefill) == 0 {
			add(m, "engines", m.Decode)
			continue
		}
		add(m, "prefill", m.Prefill)
		add(m, "decode", m.Decode)
	}
	for _, p := range out {
		slices.SortFunc(p, func(x, y Place) int { return cmp.Or(cmp.Compare(x.Model, y.Model), -cmp.Compare(x.Role, y.Role)) })
	}
	return out
}

// pairsOf returns the first maxPairs pairs, those that are not ready first.
func pairsOf(s Stats) []PairStatus {
	type names [2]string
	circuits, moved, handed := map[names]string{}, map[names]uint64{}, map[names]handoff.PairStats{}
	for _, h := range s.HandOffs {
		handed[names{h.Prefill, h.Decode}] = h
	}
	for _, p := range s.PairsOut {
		if p.State != "closed" {
			circuits[names{p.Prefill, p.Decode}] = p.State
		}
	}
	for _, m := range s.Moved {
		moved[names{m.Prefill, m.Decode}] = m.Bytes
	}
	out := make([]PairStatus, 0, len(s.Pairs))
	for _, p := range s.Pairs {
		n := names{p.Prefill, p.Decode}
		h := handed[n]
		out = append(out, PairStatus{p, circuits[n], moved[n], h.Slow, h.Seconds, h.Times})
	}
	slices.SortStableFunc(out, func(x, y PairStatus) int {
		switch {
		case x.ready() == y.ready():
			return 0
		case y.ready():
			return -1
		}
		return 1
	})
	return out[:min(len(out), maxPairs)]
}

// live answers with the requests under way.
func (r *Router) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, r.exchanges.Live(maxLive))
}

// limitOf reads ?limit=: how many requests are wanted at most; 0 means all.
func limitOf(req *http.Request) (int, bool) {
	text := req.URL.Query().Get("limit")
	if text == "" {
		return 0, true
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n > 0
}
