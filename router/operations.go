package router

import (
	"encoding/json"
	"net/http"
)

// Operations serves /health (the process lives), /ready (it takes requests: not draining, and for every model some
// engine may serve), and /requests (the latest requests, newest first, as JSON; ?id= for one, by request id).
func (r *Router) Operations() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /ready", r.ready)
	mux.HandleFunc("GET /requests", r.requests)
	return mux
}

// readiness is the body of /ready.
type readiness struct {
	Ready    bool            `json:"ready"`
	Draining bool            `json:"draining"`
	Requests int             `json:"requests"` // under way
	Models   map[string]bool `json:"models"`   // whether some engine may serve it
	Engines  []engineState   `json:"engines"`
}

type engineState struct {
	Name     string `json:"name"`
	Up       bool   `json:"up"`
	InFlight int64  `json:"in_flight"`
}

// Readiness reports whether requests are taken, and what is known of the engines.
func (r *Router) readiness() readiness {
	out := readiness{Draining: r.draining.Load(), Requests: r.live.len(), Models: make(map[string]bool, len(r.fleet.models))}
	out.Ready = !out.Draining
	for name, m := range r.fleet.models {
		out.Models[name] = usable(m.decode) > 0
		out.Ready = out.Ready && out.Models[name]
	}
	for _, e := range r.fleet.engines {
		out.Engines = append(out.Engines, engineState{Name: e.name, Up: !e.down.Load(), InFlight: e.inFlight.Load()})
	}
	return out
}

func (r *Router) ready(w http.ResponseWriter, _ *http.Request) {
	state := r.readiness()
	status := http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, state)
}

func (r *Router) requests(w http.ResponseWriter, req *http.Request) {
	id := req.URL.Query().Get("id")
	list := r.recent.list(func(s *Summary) bool { return id == "" || s.RequestID == id })
	for i := range list {
		if list[i].TransferID != "" {
			r.enterBooks(&list[i])
		}
	}
	if id == "" {
		writeJSON(w, http.StatusOK, list)
		return
	}
	if len(list) == 0 {
		http.Error(w, "no such request", http.StatusNotFound)
		return
	}
	writeJSON(w, http.StatusOK, list[0])
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
