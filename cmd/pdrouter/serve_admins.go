package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"pdrouter/auth"
)

// administered lets only administrators see what the operations routes tell. Probes stay open to everybody, with their
// status and nothing about engines: orchestrators have no token. A nil admins changes nothing.
func administered(admins *auth.Admins, ready func() bool, routes http.Handler, log *slog.Logger) http.Handler {
	if admins == nil {
		return routes
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			routes.ServeHTTP(w, r)
			return
		}
		_, err := admins.Authenticate(r)
		if err == nil {
			routes.ServeHTTP(w, r)
			return
		}
		if r.URL.Path == "/ready" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			status := http.StatusOK
			if !ready() {
				status = http.StatusServiceUnavailable
			}
			w.WriteHeader(status)
			return
		}
		var refusal *auth.Error
		if !errors.As(err, &refusal) {
			refusal = &auth.Error{Code: auth.InvalidToken, Err: err}
		}
		log.Warn("operations: refused", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "status", refusal.HTTPStatus(),
			"reason", refusal.Reason(), "err", refusal)
		if c := refusal.Challenge(); c != "" {
			w.Header().Set("WWW-Authenticate", c)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(refusal.HTTPStatus())
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{ // whoever has left needs no answer
			"message": refusal.Message(), "type": refusal.Reason(), "param": nil, "code": refusal.HTTPStatus(),
		}})
	})
}
