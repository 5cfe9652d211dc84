package main

import (
	"log/slog"
	"net/http"

	"pdrouter/auth"
	"pdrouter/metadata"
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
		metadata.Refuse(w, r, "operations", err, log)
	})
}
