package records

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestRecordsSignature(t *testing.T) {
	a, b := keytest.New(t, "a"), keytest.New(t, "b")
	trusted, err := keys.Trust(a)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(a, trusted)
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
	private, err := a.Ed25519()
	if err != nil {
		t.Fatal(err)
	}
	bare := ed25519.Sign(private, []byte("payload")) // a signature of the same key over something that is no record
	for name, err := range map[string]error{
		"other payload":     r.Verify(kid, []byte("Payload"), sig),
		"untrusted key":     r.Verify("b", []byte("payload"), sig),
		"no signature":      r.Verify(kid, []byte("payload"), nil),
		"signature of else": r.Verify(kid, []byte("payload"), bare),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(b, trusted); err == nil {
		t.Error("an own key that nobody trusts was accepted")
	}
	reader, err := New(nil, trusted)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.Sign([]byte("payload")); err == nil {
		t.Error("a reader signed")
	}
}

// TestRecordsKeyIsReplaced: the own key is read again, and takes over as soon as it is trusted here; until then the one of before signs.
func TestRecordsKeyIsReplaced(t *testing.T) {
	dir := t.TempDir()
	own, trust := filepath.Join(dir, "own.jwk"), filepath.Join(dir, "trust")
	if err := os.Mkdir(trust, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(path string, k *keys.Key) {
		t.Helper()
		b, err := k.JWK()
		if err != nil {
			t.Fatal(err)
		}
		keytest.Write(t, path, string(b))
	}
	old, next := keytest.New(t, "old"), keytest.New(t, "next")
	write(own, old)
	write(filepath.Join(trust, "old.jwk"), old.Public())
	trusted, err := keys.LoadTrusted(trust)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Load(own, trusted)
	if err != nil {
		t.Fatal(err)
	}
	signs := func(want string) {
		t.Helper()
		id, sig, err := r.Shared().Sign([]byte("payload"))
		if err != nil || id != want || r.Shared().Verify(id, []byte("payload"), sig) != nil {
			t.Errorf("%s signs, %v; want %s", id, err, want)
		}
	}
	signs("old")
	write(own, next)
	if r.Reload() == nil {
		t.Error("a key that is not trusted here is taken")
	}
	signs("old")
	write(filepath.Join(trust, "next.jwk"), next.Public())
	if err := trusted.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := r.Reload(); err != nil {
		t.Error(err)
	}
	signs("next")
	keytest.Write(t, own, "no key")
	if r.Reload() == nil {
		t.Error("a file without a key is taken")
	}
	signs("next")
}
