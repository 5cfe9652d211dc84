package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/auth/internal/keytest"
)

func apiKeysFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api-keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFault30NoToken(t *testing.T) {
	clients, err := NewClients(ClientsConfig{Verifier: newVerifier(t, VerifierConfig{}, keytest.New(t, "k1"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"", "Bearer", "Bearer ", "Basic YTpi", "bearer\tx", "x"} {
		_, err := clients.Authenticate(value)
		var e *Error
		if !errors.As(err, &e) || e.HTTPStatus() != http.StatusUnauthorized || e.Challenge() != `Bearer realm="pdrouter"` || e.Message() != "missing or invalid credentials" {
			t.Errorf("%q: got %v; want 401 with a bare challenge", value, err)
		}
	}
	if _, err := NewClients(ClientsConfig{}); err == nil {
		t.Error("clients that admit nobody were made")
	}
}

func TestClientsTakeKeysAndTokens(t *testing.T) {
	digest := func(key string) string {
		d := sha256.Sum256([]byte(key))
		return hex.EncodeToString(d[:])
	}
	keys, err := LoadAPIKeys(apiKeysFile(t, "# who\n\nalice:"+digest("pdr_a")+"\nbob:"+digest("sk-any.thing")+":tiny, org/big:1\n"))
	if err != nil {
		t.Fatal(err)
	}
	signer := keytest.New(t, "k1")
	clients, err := NewClients(ClientsConfig{APIKeys: keys, Verifier: newVerifier(t, VerifierConfig{}, signer)})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"Bearer pdr_a":                       "alice",
		"bEARER pdr_a":                       "alice",
		"Bearer sk-any.thing":                "bob",
		"Bearer " + mint(t, signer, Grant{}): "alice",
		"Bearer pdr_A":                       "",
		"Bearer " + digest("pdr_a"):          "",
		"Bearer  pdr_a":                      "",
		"Bearer " + mint(t, keytest.New(t, "x"), Grant{}): "",
		"Bearer a.b.c":                        "",
		"Bearer " + strings.Repeat("k", 9000): "",
	} {
		p, err := clients.Authenticate(value)
		if (err == nil) != (want != "") || p.Subject != want {
			t.Errorf("%.40q: got %q, %v; want %q", value, p.Subject, err, want)
		}
		if err != nil {
			refused(t, value[:min(len(value), 40)], err)
		}
	}
	p, err := clients.Authenticate("Bearer sk-any.thing")
	if err != nil || !p.Permits("tiny") || !p.Permits("org/big:1") || p.Permits("other") {
		t.Errorf("bob may name %q (%v); want tiny and org/big:1", p.Models, err)
	}
}
