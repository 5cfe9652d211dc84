package kubesecrets

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// memory has Secrets in a map.
type memory map[string]Data

func (m memory) Get(_ context.Context, name string) (Data, error) { return m[name], nil }

func (m memory) Create(_ context.Context, name string, d Data) error {
	if m[name] != nil {
		return errors.New("it exists")
	}
	m[name] = d
	return nil
}

func (m memory) Replace(_ context.Context, name string, was, d Data) error {
	if m[name] == nil || !m[name].equal(was) {
		return errors.New("there is none, or another")
	}
	m[name] = d
	return nil
}

// TestSecretsAreMadeOnce: the first call makes all, another one renews tokens and changes nothing else.
func TestSecretsAreMadeOnce(t *testing.T) {
	m := memory{}
	now := time.Now()
	done, err := Make(t.Context(), m, "gw", "llm", Rotation{}, now)
	if err != nil || len(done) != 10 || len(m) != 10 {
		t.Fatalf("%v, %v: %d secrets", done, err, len(m))
	}
	first := memory{}
	for name, d := range m {
		first[name] = d
	}
	if done, err = Make(t.Context(), m, "gw", "llm", Rotation{}, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for name, d := range first {
		renewed := slices.Contains(done, "renewed "+name)
		for key := range d {
			if (string(m[name][key]) != string(d[key])) != renewed {
				t.Errorf("%s/%s is another: %t; said to be renewed: %t", name, key, !renewed, renewed)
			}
		}
		if renewed != (name == "gw-gateway-token" || name == "gw-prometheus-token") {
			t.Errorf("%s is renewed: %t", name, renewed)
		}
	}
	if done, err = Make(t.Context(), m, "gw", "llm", Rotation{}, now.Add(80*24*time.Hour)); err != nil || !slices.Contains(done, "renewed gw-agents-tls") {
		t.Errorf("the certificate is not renewed before its end: %v, %v", done, err)
	}
}

// TestSecretsFitTogether has what verifies take what signs, and a client's key be one of the file.
func TestSecretsFitTogether(t *testing.T) {
	m := memory{}
	if _, err := Make(t.Context(), m, "gw", "llm", Rotation{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(secret, key string) string {
		path := filepath.Join(dir, secret+"-"+key)
		if err := os.WriteFile(path, m[secret][key], 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, row := range []struct{ keys, file, token, audience string }{
		{"gw-agent-keys", "current.jwk", "gw-gateway-token", auth.MetadataAudience}, {"gw-admin-keys", "current.jwk", "gw-prometheus-token", auth.AdminAudience},
	} {
		if k, err := keys.Load(write(row.keys, row.file)); err != nil || k.Signs() {
			t.Errorf("%s: %v, or it is private", row.keys, err)
		}
		trusted, err := keys.LoadTrusted(write(row.keys, row.file))
		if err != nil {
			t.Fatal(err)
		}
		v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: Issuer, Audience: row.audience}, trusted)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Verify(string(m[row.token]["token"][:len(m[row.token]["token"])-1])); err != nil {
			t.Errorf("%s: %v", row.token, err)
		}
	}
	block, _ := pem.Decode(m["gw-agents-tls"]["tls.crt"])
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || c.VerifyHostname("gw-agents.llm.svc") != nil {
		t.Errorf("certificate %v, %v", c, err)
	}
	if len(m["gw-redis"]["password"]) < 20 || len(m["gw-api-keys"]["key"]) < 32 {
		t.Error("a password or a key is short")
	}
}

// TestSecretsOfOthersAreLeft: a certificate that somebody else made stays, and what cannot be read is said.
func TestSecretsOfOthersAreLeft(t *testing.T) {
	m := memory{}
	old, err := selfSigned("another", "x", "y", time.Now().Add(-89*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	m["gw-agents-tls"] = old
	if _, err := Make(t.Context(), m, "gw", "llm", Rotation{}, time.Now()); err != nil || string(m["gw-agents-tls"]["tls.crt"]) != string(old["tls.crt"]) {
		t.Errorf("%v, or somebody's certificate is replaced", err)
	}
	m["gw-signing-keys"] = Data{"agents.jwk": []byte("no key")}
	if _, err := Make(t.Context(), m, "gw", "llm", Rotation{}, time.Now()); err == nil {
		t.Error("a Secret without keys is taken")
	}
}
