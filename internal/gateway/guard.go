package gateway

import (
	"log/slog"
	"net/http"
	"strings"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/refusal"
)

// administered lets only administrators see what the operations routes tell. Probes stay open to everybody, with their
// status and nothing about engines: orchestrators have no token. open returns the status of a probe, 0 for other requests. While current returns nil everybody may see everything.
func administered(current func() *auth.Admins, open func(*http.Request) (status int), routes http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		admins := current()
		if admins == nil || r.URL.Path == "/health" && looks(r) {
			audited(w, r, auth.Principal{}, routes, log)
			return
		}
		who, err := admins.Authorize(r, scopeOf(r))
		if err == nil {
			audited(w, r, who, routes, log)
			return
		}
		if looks(r) {
			if status := open(r); status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		refusal.Answer(w, r, "operations", err, log)
	})
}

// tokenOnly lets only administrators use the routes, also where auth.admins is not set any more.
func tokenOnly(admins adminapi.Authorizer, routes http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := admins.Authorize(r, scopeOf(r))
		if err != nil {
			refusal.Answer(w, r, "admin", err, log)
			return
		}
		audited(w, r, who, routes, log)
	})
}

// scopeOf returns what a request to the operations routes needs: the scope read to look, write for what changes something or, as a profile
// does, slows the process.
func scopeOf(r *http.Request) string {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/explain/"): // it has a body, and changes nothing
		return auth.ReadScope
	case strings.HasPrefix(path, profiles), !looks(r):
		return auth.WriteScope
	}
	return auth.ReadScope
}

// looks reports whether a request changes nothing, by its method.
func looks(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// audited serves a request, and logs what an administrator did.
func audited(w http.ResponseWriter, r *http.Request, who auth.Principal, routes http.Handler, log *slog.Logger) {
	action := actionOf(r)
	if action == "" {
		routes.ServeHTTP(w, r)
		return
	}
	status := &recordedStatus{w, http.StatusOK}
	defer func() { adminapi.Audit(log, r, action, who, status.status, "") }() // also of one that panics
	routes.ServeHTTP(status, r)
}

// actionOf names what a request does, for the log; "" if it only looks.
func actionOf(r *http.Request) string {
	switch path := r.URL.Path; {
	case path == "/config/reload" && r.Method == http.MethodPost:
		return "reload"
	case path == logLevel && r.Method == http.MethodPut:
		return "log_level"
	case strings.HasPrefix(path, profiles):
		return "profile"
	case scopeOf(r) == auth.WriteScope:
		return "other"
	}
	return ""
}

// recordedStatus notes the status that is answered.
type recordedStatus struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *recordedStatus) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (s *recordedStatus) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// probe returns the status of a probe: whether the gateway is ready, whether an engine may end. It is 0 for other requests.
func (g *Gateway) probe(r *http.Request) int {
	var ok bool
	switch r.URL.Path {
	case "/ready":
		ok = g.router.Ready()
	case "/may-stop":
		engine := r.URL.Query().Get("engine")
		if engine == "" {
			return http.StatusBadRequest
		}
		ok = g.router.MayStop(engine).MayStop
	default:
		return 0
	}
	if !ok {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}
