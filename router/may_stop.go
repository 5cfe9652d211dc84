package router

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"pdrouter/router/fleet"
)

// MayStop is whether the process of an engine may end without harm to a request of this gateway.
type MayStop struct {
	MayStop bool   `json:"may_stop"`
	Why     string `json:"why,omitempty"` // why not
}

// MayStop reports whether an engine may end: it gets no new requests, has none in progress, has no KV that a request in progress or its cleanup
// still needs, and none of a conversation that is to be moved. The data-parallel ranks of an engine count as the engine, and so do its runs that
// the configuration has lost. An engine that the gateway does not know may end. The answer is that of one gateway: each has to be asked.
func (r *Router) MayStop(engine string) MayStop {
	f := r.snapshot().fleet
	for _, e := range append(slices.Clip(f.Engines), r.monitor.Monitored()...) {
		if e.Name != engine && e.RankOf != engine && !strings.HasPrefix(e.Name, engine+".dp") {
			continue
		}
		if why := r.whyNotStop(e, f.Engine(e.Name) == e); why != "" {
			return MayStop{Why: e.Name + " " + why}
		}
	}
	return MayStop{MayStop: true}
}

// whyNotStop says what an engine is needed for, "" if for nothing. One that is not of the configuration takes no new requests.
func (r *Router) whyNotStop(e *fleet.Engine, configured bool) string {
	if configured && !e.Draining.Load() {
		return "takes new requests: it is not drained"
	}
	if n := e.InFlight.Load(); n > 0 {
		return fmt.Sprintf("has %d requests in progress", n)
	}
	if n := e.Uncollected.Load(); n > 0 {
		return fmt.Sprintf("has KV of %d requests that has not come to decode", n)
	}
	if n := r.moves.Remaining(e); n > 0 {
		return fmt.Sprintf("has %d conversations to move to other engines", n)
	}
	return ""
}

// mayStop answers the question of a pod's preStop hook: 200 if the engine may end, else 503.
func (r *Router) mayStop(w http.ResponseWriter, req *http.Request) {
	engine := req.URL.Query().Get("engine")
	if engine == "" {
		writeJSON(w, http.StatusBadRequest, MayStop{Why: "engine is missing: want /may-stop?engine=NAME"})
		return
	}
	out, status := r.MayStop(engine), http.StatusOK
	if !out.MayStop {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, out)
}
