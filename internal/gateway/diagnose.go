package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"

	"pdrouter/internal/configfile"
)

const (
	profiles = "/debug/pprof/"
	logLevel = "/log-level"
)

// diagnosisRoutes serves profiles of the process and the level of its log. They are on listen.admin alone, which asks for a token.
func (g *Gateway) diagnosisRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+profiles, pprof.Index)
	mux.HandleFunc("GET "+profiles+"profile", pprof.Profile)
	mux.HandleFunc("GET "+profiles+"trace", pprof.Trace)
	mux.HandleFunc("GET "+profiles+"symbol", pprof.Symbol)
	mux.HandleFunc("POST "+profiles+"symbol", pprof.Symbol)
	mux.HandleFunc("GET "+profiles+"cmdline", pprof.Cmdline)
	mux.HandleFunc("GET "+logLevel, g.showLogLevel)
	mux.HandleFunc("PUT "+logLevel, g.setLogLevel)
}

// level is the body of /log-level.
type level struct {
	Level string `json:"level"` // debug, info, warn or error
}

func (g *Gateway) showLogLevel(w http.ResponseWriter, _ *http.Request) {
	if g.logs == nil {
		http.Error(w, "the log of this process has no level", http.StatusNotImplemented)
		return
	}
	writeJSON(w, http.StatusOK, level{g.logs.Level()})
}

// setLogLevel changes the level until the gateway stops or takes a configuration file into use.
func (g *Gateway) setLogLevel(w http.ResponseWriter, r *http.Request) {
	if g.logs == nil {
		http.Error(w, "the log of this process has no level", http.StatusNotImplemented)
		return
	}
	var want level
	err := json.NewDecoder(io.LimitReader(r.Body, 1<<10)).Decode(&want)
	if err != nil {
		http.Error(w, `the body is not as {"level": "debug"}`, http.StatusBadRequest)
		return
	}
	to, err := configfile.Log{Level: want.Level}.MinLevel()
	if err != nil {
		http.Error(w, "level is not debug, info, warn or error", http.StatusBadRequest)
		return
	}
	g.logs.SetLevel(to)
	writeJSON(w, http.StatusOK, level{g.logs.Level()})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // it may have left
}
