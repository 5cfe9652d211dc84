// Package authtest mints tokens and checks refusals for the tests of the packages below auth.
package authtest

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// Mint returns a token of alice's for clients, of one hour, by "issuer"; what g has goes before that.
func Mint(t testing.TB, key *keys.Key, g auth.Grant) string {
	t.Helper()
	if g.Issuer == "" {
		g.Issuer = "issuer"
	}
	if g.Audience == "" {
		g.Audience = auth.ClientAudience
	}
	if g.Subject == "" {
		g.Subject = "alice"
	}
	if g.TTL == 0 {
		g.TTL = time.Hour
	}
	s, err := auth.Mint(key, g)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Refused fails the test unless err is the one refusal that every invalid token gets.
func Refused(t testing.TB, name string, err error) {
	t.Helper()
	var e *auth.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v; want a refusal", name, err)
		return
	}
	if e.HTTPStatus() != http.StatusUnauthorized || e.Message() != "missing or invalid credentials" || e.Challenge() != `Bearer realm="pdrouter", error="invalid_token"` {
		t.Errorf("%s: got %d %q %q; want the same 401 as for any other invalid token", name, e.HTTPStatus(), e.Message(), e.Challenge())
	}
}
