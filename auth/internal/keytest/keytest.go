// Package keytest makes keys and key files for the tests of auth and the packages below it.
package keytest

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pdrouter/auth/keys"
)

// New returns an EdDSA key with this id, made from it, so that no failure depends on chance.
func New(t testing.TB, id string) *keys.Key {
	t.Helper()
	private := ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32.32s", id)))
	k, err := keys.Parse([]byte(PEM("PRIVATE KEY", Must(t)(x509.MarshalPKCS8PrivateKey(private)))))
	if err != nil {
		t.Fatal(err)
	}
	k.ID = id
	return k
}

// Generate returns a key of an algorithm. All keys for RS256 are the same one: it takes long to make one.
func Generate(t testing.TB, algorithm string) *keys.Key {
	t.Helper()
	fresh := keys.Generate
	if algorithm == keys.RS256 {
		fresh = func(string) (*keys.Key, error) { return rsaKey() }
	}
	k, err := fresh(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var rsaKey = sync.OnceValues(func() (*keys.Key, error) { return keys.Generate(keys.RS256) })

// Trust returns the set of these keys.
func Trust(t testing.TB, all ...*keys.Key) *keys.Trusted {
	t.Helper()
	set, err := keys.Trust(all...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Write writes a file that others may not read.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Remove removes both files of a key from a folder.
func Remove(t testing.TB, dir string, k *keys.Key) {
	t.Helper()
	for _, name := range []string{k.ID + ".jwk", k.ID + ".pub.jwk"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// PEM returns a PEM block.
func PEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// Must returns what a marshaller made of a key.
func Must(t testing.TB) func(der []byte, err error) []byte {
	return func(der []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
}

// RunJWKS starts asking; it ends with the test. It returns when the first question is over.
func RunJWKS(t *testing.T, cfg keys.JWKSConfig, transport http.RoundTripper) *keys.JWKS {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = "https://issuer.example/keys"
	}
	j, err := keys.NewJWKS(cfg, transport, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v; want nil", err)
		}
	})
	<-j.Asked()
	return j
}
