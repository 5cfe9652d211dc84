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
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api-keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFault30NoToken(t *testing.T) {
	clients, err := NewClients(ClientsConfig{Verifier: newVerifier(t, VerifierConfig{}, newKey(t, "k1"))})
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
	keys, err := LoadAPIKeys(writeFile(t, "# who\n\nalice:"+digest("pdr_a")+"\nbob:"+digest("sk-any.thing")+":tiny, org/big:1\n"))
	if err != nil {
		t.Fatal(err)
	}
	signer := newKey(t, "k1")
	clients, err := NewClients(ClientsConfig{APIKeys: keys, Verifier: newVerifier(t, VerifierConfig{}, signer)})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"Bearer pdr_a":                               "alice",
		"bEARER pdr_a":                               "alice",
		"Bearer sk-any.thing":                        "bob",
		"Bearer " + mint(t, signer, Grant{}):         "alice",
		"Bearer pdr_A":                               "",
		"Bearer " + digest("pdr_a"):                  "",
		"Bearer  pdr_a":                              "",
		"Bearer " + mint(t, newKey(t, "x"), Grant{}): "",
		"Bearer a.b.c":                               "",
		"Bearer " + strings.Repeat("k", 9000):        "",
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

func TestAPIKeysFile(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for name, c := range map[string]struct{ text, want string }{
		"no digest":         {"alice\n", ":1: want name:sha256"},
		"no name":           {":" + digest, ":1: want name:sha256"},
		"key, not digest":   {"\nalice:pdr_secret", ":2: the second field is not a SHA-256"},
		"short digest":      {"alice:" + digest[2:], ":1: the second field is not a SHA-256"},
		"doubled digest":    {"a:" + digest + "\nb:" + digest, ":2: this digest occurs twice"},
		"empty model":       {"a:" + digest + ":", ":1: the list of models has an empty name"},
		"empty model after": {"a:" + digest + ":x,,y", ":1: the list of models has an empty name"},
		"nothing":           {"# nothing\n", ":1: no keys"},
	} {
		_, err := LoadAPIKeys(writeFile(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), digest)) {
			t.Errorf("%s: the error quotes a secret: %v", name, err)
		}
	}
	path := writeFile(t, "a:"+digest+"\n")
	keys, err := LoadAPIKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	key, err := AppendAPIKey(path, "bob", nil, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := keys.find(sha256.Sum256([]byte(key))); ok {
		t.Error("the key is known before the file is read again")
	}
	if err := keys.Reload(); err != nil {
		t.Fatal(err)
	}
	if p, ok := keys.find(sha256.Sum256([]byte(key))); !ok || p.Subject != "bob" {
		t.Errorf("after Reload: got %+v, %t; want bob", p, ok)
	}
	for _, name := range []string{"", "a:b", "# a", " a", "a\nb"} {
		if _, err := AppendAPIKey(path, name, nil, Limits{}); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	for _, model := range []string{"", "a,b", "a\nb"} {
		if _, err := AppendAPIKey(path, "carol", []string{model}, Limits{}); err == nil {
			t.Errorf("model %q was accepted", model)
		}
	}
}
