package gateway

import (
	"log/slog"
	"net/http"
	"strings"

	"pdrouter/auth"
	"pdrouter/internal/refusal"
)

// administered lets only administrators see what the operations routes tell. Probes stay open to everybody, with their
// status and nothing about engines: orchestrators have no token. While current returns nil everybody may see everything.
func administered(current func() *auth.Admins, ready func() bool, routes http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		admins := current()
		if admins == nil || r.URL.Path == "/health" {
			routes.ServeHTTP(w, r)
			return
		}
		permit := admins.Authenticate
		if strings.HasPrefix(r.URL.Path, "/explain/") { // it has a body, and changes nothing
			permit = func(r *http.Request) (auth.Principal, error) { return admins.Authorize(r, auth.ReadScope) }
		}
		_, err := permit(r)
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
		refusal.Answer(w, r, "operations", err, log)
	})
}
