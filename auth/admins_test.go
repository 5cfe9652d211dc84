package auth

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pdrouter/auth/internal/keytest"
)

func TestAdminsLookAndChange(t *testing.T) {
	key := keytest.New(t, "k1")
	admins, err := NewAdmins(newVerifier(t, VerifierConfig{Audience: AdminAudience}, key))
	if err != nil {
		t.Fatal(err)
	}
	admin := func(scopes ...string) string { return mint(t, key, Grant{Audience: AdminAudience, Scopes: scopes}) }
	for _, c := range []struct {
		name, method, token string
		want                int
	}{
		{"looks", http.MethodGet, admin("read"), 200},
		{"looks at the head", http.MethodHead, admin("read"), 200},
		{"changes with read", http.MethodPost, admin("read"), 403},
		{"changes", http.MethodPost, admin("write"), 200},
		{"looks with write", http.MethodGet, admin("write"), 403},
		{"no scope", http.MethodGet, admin(), 403},
		{"an agent's token", http.MethodGet, mint(t, key, Grant{Audience: MetadataAudience, Scopes: []string{"read"}}), 401},
		{"a client's token", http.MethodGet, mint(t, key, Grant{Scopes: []string{"read"}}), 401},
		{"nothing", http.MethodGet, "", 401},
	} {
		r := request(c.token)
		r.Method = c.method
		if _, err := admins.Authenticate(r); status(err) != c.want {
			t.Errorf("%s: got %v; want %d", c.name, err, c.want)
		}
	}
	twice := httptest.NewRequest(http.MethodGet, "/", nil)
	twice.Header["Authorization"] = []string{"Bearer " + admin("read"), "Bearer " + admin("read")}
	_, err = admins.Authenticate(twice)
	refused(t, "two headers", err)
	if _, err := NewAdmins(newVerifier(t, VerifierConfig{}, key)); err == nil {
		t.Error("a verifier of clients' tokens was taken for administrators")
	}
}
