package keys_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestKeyFiles(t *testing.T) {
	k, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public, err := keys.Write(dir, k)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := keys.Write(dir, k); err == nil {
		t.Error("a key file was overwritten")
	}
	der, err := x509.MarshalPKCS8PrivateKey(k.SigningPart())
	if err != nil {
		t.Fatal(err)
	}
	pemFile := filepath.Join(dir, "k.pem")
	if err := os.WriteFile(pemFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, signs := range map[string]bool{private: true, public: false, pemFile: true} {
		got, err := keys.Load(path)
		if err != nil || got.ID != k.ID || got.Signs() != signs || !got.Equal(k) {
			t.Errorf("%s: got %v, %v; want %v, signs: %t", filepath.Base(path), got, err, k, signs)
		}
	}
	if set, err := keys.LoadTrusted(dir); err != nil || len(set.IDs()) != 1 {
		t.Errorf("the folder: got %v; want one key in three files", err)
	}
	if got, want := fmt.Sprintf("%v|%+v|%#v|%s", k, k, k, k), strings.Repeat("key "+k.ID+"|", 3)+"key "+k.ID; got != want {
		t.Errorf("printed as %q; want %q: the id alone", got, want)
	}
	if err := os.Chmod(private, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Load(private); err == nil {
		t.Error("a private key that everybody may read was accepted")
	}
}

func TestBadKeyFiles(t *testing.T) {
	k := keytest.New(t, "k1")
	dir := t.TempDir()
	private, _, err := keys.Write(dir, k)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]map[string]any{
		"symmetric":      {"kty": "oct"},
		"other curve":    {"crv": "X25519"},
		"other alg":      {"alg": "HS256"},
		"no alg":         {"alg": ""},
		"for encryption": {"use": "enc"},
		"no kid":         {"kid": ""},
		"long kid":       {"kid": strings.Repeat("k", 129)},
		"short x":        {"x": "AAAA"},
		"foreign d":      {"d": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
		"d is a number":  {"d": 5},
	} {
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		for f, v := range change {
			m[f] = v
		}
		bad, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keys.Parse(bad); err == nil {
			t.Errorf("%s: accepted", name)
		} else if d, ok := m["d"].(string); ok && strings.Contains(err.Error(), d) {
			t.Errorf("%s: the error quotes the private part", name)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "garbage": "garbage", "RSA": "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
		"doubled": strings.Replace(string(b), "{", `{"kty":"OKP",`, 1), "trailing": string(b) + "{}",
	} {
		if _, err := keys.Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	other := keytest.New(t, "x")
	other.ID = "k1"
	if _, err := keys.Trust(k, other); err == nil {
		t.Error("two keys of one id were accepted")
	}
}
