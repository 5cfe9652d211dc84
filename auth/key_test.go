package auth

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func remove(t *testing.T, dir string, k *Key) {
	t.Helper()
	for _, name := range []string{k.ID + ".jwk", k.ID + ".pub.jwk"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeyFiles(t *testing.T) {
	k, err := GenerateKey(EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public, err := WriteKey(dir, k)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := WriteKey(dir, k); err == nil {
		t.Error("a key file was overwritten")
	}
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		t.Fatal(err)
	}
	pemFile := filepath.Join(dir, "k.pem")
	if err := os.WriteFile(pemFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, signs := range map[string]bool{private: true, public: false, pemFile: true} {
		got, err := LoadKey(path)
		if err != nil || got.ID != k.ID || got.Signs() != signs || !got.same(&Key{public: k.public}) {
			t.Errorf("%s: got %v, %v; want %v, signs: %t", filepath.Base(path), got, err, k, signs)
		}
	}
	if keys, err := LoadKeys(dir); err != nil || len(keys.IDs()) != 1 {
		t.Errorf("the folder: got %v; want one key in three files", err)
	}
	if got, want := fmt.Sprintf("%v|%+v|%#v|%s", k, k, k, k), strings.Repeat("key "+k.ID+"|", 3)+"key "+k.ID; got != want {
		t.Errorf("printed as %q; want %q: the id alone", got, want)
	}
	if err := os.Chmod(private, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(private); err == nil {
		t.Error("a private key that everybody may read was accepted")
	}
}

func TestBadKeyFiles(t *testing.T) {
	k := newKey(t, "k1")
	dir := t.TempDir()
	private, _, err := WriteKey(dir, k)
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
		if _, err := parseKey(bad); err == nil {
			t.Errorf("%s: accepted", name)
		} else if d, ok := m["d"].(string); ok && strings.Contains(err.Error(), d) {
			t.Errorf("%s: the error quotes the private part", name)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "garbage": "garbage", "RSA": "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
		"doubled": strings.Replace(string(b), "{", `{"kty":"OKP",`, 1), "trailing": string(b) + "{}",
	} {
		if _, err := parseKey([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	other := newKey(t, "x")
	other.ID = "k1"
	if _, err := NewKeys(k, other); err == nil {
		t.Error("two keys of one id were accepted")
	}
}

func TestRecordsSignature(t *testing.T) {
	a, b := newKey(t, "a"), newKey(t, "b")
	trusted, err := NewKeys(a)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRecords(a, trusted)
	if err != nil {
		t.Fatal(err)
	}
	kid, sig, err := r.Sign([]byte("payload"))
	if err != nil || kid != "a" {
		t.Fatalf("got key %s, %v; want a", kid, err)
	}
	if err := r.Verify(kid, []byte("payload"), sig); err != nil {
		t.Error(err)
	}
	bare := forge(a, "payload", "") // a signature of the same key over something that is no record
	for name, err := range map[string]error{
		"other payload":     r.Verify(kid, []byte("Payload"), sig),
		"untrusted key":     r.Verify("b", []byte("payload"), sig),
		"no signature":      r.Verify(kid, []byte("payload"), nil),
		"signature of else": r.Verify(kid, []byte("payload"), []byte(bare[strings.LastIndex(bare, ".")+1:])),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewRecords(b, trusted); err == nil {
		t.Error("an own key that nobody trusts was accepted")
	}
	reader, err := NewRecords(nil, trusted)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.Sign([]byte("payload")); err == nil {
		t.Error("a reader signed")
	}
}
