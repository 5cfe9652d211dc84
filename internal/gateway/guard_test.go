package gateway

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// Probes stay open with their status alone; whatever names engines is for administrators.
func TestOperationsAreForAdministrators(t *testing.T) {
	key, _, public := MakeKey(t, filepath.Join(t.TempDir(), "keys"))
	trusted, err := keys.LoadTrusted(public)
	if err != nil {
		t.Fatal(err)
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: Issuer, Audience: auth.AdminAudience}, trusted)
	if err != nil {
		t.Fatal(err)
	}
	admins, err := auth.NewAdmins(v)
	if err != nil {
		t.Fatal(err)
	}
	token := func(audience, scope string) string {
		return Mint(t, key, auth.Grant{Audience: audience, Subject: "ops", Scopes: []string{scope}})
	}
	var log strings.Builder
	ready := true
	inner := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("details")) })
	h := administered(func() *auth.Admins { return admins }, func(r *http.Request) int {
		switch {
		case r.URL.Path != "/ready" && r.URL.Path != "/may-stop":
			return 0
		case ready:
			return 200
		}
		return 503
	}, inner, slog.New(slog.NewTextHandler(&log, nil)))
	look := token("pdrouter-admin", "read")
	for _, c := range []struct {
		name, path, token string
		ready             bool
		status            int
		details           bool
	}{
		{"health", "/health", "", true, 200, true},
		{"ready, a stranger", "/ready", "", true, 200, false},
		{"not ready, a stranger", "/ready", "", false, 503, false},
		{"ready, a bad token", "/ready", "x.y.z", true, 200, false},
		{"ready, an administrator", "/ready", look, true, 200, true},
		{"may stop, a stranger", "/may-stop?engine=prefill-0", "", true, 200, false},
		{"may not stop, a stranger", "/may-stop?engine=prefill-0", "", false, 503, false},
		{"may stop, an administrator", "/may-stop?engine=prefill-0", look, true, 200, true},
		{"requests, a stranger", "/requests", "", true, 401, false},
		{"requests, an administrator", "/requests", look, true, 200, true},
		{"requests, without scope", "/requests", token("pdrouter-admin", "write"), true, 403, false},
		{"explain, an administrator who may only look", "/explain/v1/completions", look, true, 200, true},
		{"explain, without scope", "/explain/v1/completions", token("pdrouter-admin", "write"), true, 403, false},
		{"explain, a stranger", "/explain/v1/completions", "", true, 401, false},
		{"requests, a client", "/requests", token("pdrouter", "read"), true, 401, false},
		{"metrics, a stranger", "/metrics", "", true, 401, false},
		{"metrics, an administrator", "/metrics", look, true, 200, true},
	} {
		ready = c.ready
		method := http.MethodGet
		if strings.HasPrefix(c.path, "/explain/") {
			method = http.MethodPost
		}
		r := httptest.NewRequest(method, c.path, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || strings.Contains(w.Body.String(), "details") != c.details || c.status == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: got %d %q; want %d, details: %t", c.name, w.Code, w.Body.String(), c.status, c.details)
		}
	}
	if got := strings.Count(log.String(), "operations: refused"); got != 6 || strings.Contains(log.String(), look) {
		t.Errorf("%d refusals are noted; want 6, and no token:\n%s", got, log.String())
	}
	if administered(nil, nil, inner, nil) == nil {
		t.Error("without administrators there are no routes")
	}
}
