package auth

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestFault38KeysOverlap(t *testing.T) {
	old, next := keytest.New(t, "old"), keytest.New(t, "next")
	dir := t.TempDir()
	for _, k := range []*keys.Key{old, next} {
		if _, _, err := keys.Write(dir, k); err != nil {
			t.Fatal(err)
		}
	}
	trusted, err := keys.LoadTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: ClientAudience}, trusted)
	if err != nil {
		t.Fatal(err)
	}
	a, b := mint(t, old, Grant{}), mint(t, next, Grant{})
	for range 2 { // the second time from memory
		for _, token := range []string{a, b} {
			if _, err := v.Authenticate(token); err != nil {
				t.Fatalf("in the overlap: %v", err)
			}
		}
	}
	keytest.Remove(t, dir, old)
	if err := trusted.Reload(); err != nil {
		t.Fatal(err)
	}
	_, err = v.Authenticate(a)
	refused(t, "withdrawn key, verdict remembered", err)
	if _, err := v.Authenticate(b); err != nil {
		t.Errorf("the new key: %v", err)
	}
	keytest.Remove(t, dir, next)
	if err := trusted.Reload(); err == nil {
		t.Error("an empty folder is no error")
	}
	_, err = v.Authenticate(b)
	refused(t, "the last key withdrawn", err)
}

// TestReloadOfKeysWithdraws damages one file of a folder and deletes another: the damaged one keeps its key, the deleted
// key is gone.
func TestReloadOfKeysWithdraws(t *testing.T) {
	dir, a, b := t.TempDir(), keytest.New(t, "a"), keytest.New(t, "b")
	for _, k := range []*keys.Key{a, b} {
		if _, _, err := keys.Write(dir, k); err != nil {
			t.Fatal(err)
		}
	}
	trusted, err := keys.LoadTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"a.jwk", "a.pub.jwk"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keytest.Remove(t, dir, b)
	if err := trusted.Reload(); err == nil {
		t.Error("a damaged file is no error")
	}
	if got := trusted.IDs(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("keys are %v; want a alone", got)
	}
	if fresh, err := keys.LoadTrusted(dir); err == nil {
		t.Errorf("a start takes %v from a damaged folder", fresh.IDs())
	}
}

func TestFault40TokenEndsAndVerdictWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := keytest.New(t, "k1")
		v := newVerifier(t, VerifierConfig{}, key)
		token := mint(t, key, Grant{TTL: time.Minute, Models: []string{"tiny"}})
		for range 2 {
			p, err := v.Authenticate(token)
			if err != nil || !p.Permits("tiny") || p.Permits("big") {
				t.Fatalf("got %+v, %v; want alice, who may name tiny", p, err)
			}
		}
		time.Sleep(time.Minute + 29*time.Second)
		if _, err := v.Authenticate(token); err != nil {
			t.Errorf("within the leeway: %v", err)
		}
		time.Sleep(time.Second)
		_, err := v.Authenticate(token)
		refused(t, "after its end", err)
	})
}

// A remembered verdict is of the whole token: another signature under the same claims is looked at afresh.
func TestVerdictIsOfTheWholeToken(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	token := mint(t, key, Grant{})
	if _, err := v.Authenticate(token); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	sig[0] ^= 1
	_, err = v.Authenticate(parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(sig))
	refused(t, "altered signature", err)
	_, err = v.Authenticate(parts[0] + "." + parts[1] + "." + nextInAlphabet(parts[2]))
	refused(t, "signature written otherwise", err)
}

func TestVerdictsAreBounded(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{Cached: 10}, key)
	for range 50 {
		if _, err := v.Authenticate(mint(t, key, Grant{})); err != nil {
			t.Fatal(err)
		}
		if got := v.verdicts.len(); got > 10 {
			t.Fatalf("%d verdicts are remembered; want at most 10", got)
		}
	}
	if got := v.verdicts.len(); got != 10 {
		t.Errorf("%d verdicts are remembered; want 10", got)
	}
}

// Files that say what they said before leave what was found under them.
func TestVerdictsOutliveAReloadThatChangesNothing(t *testing.T) {
	dir := t.TempDir()
	key := keytest.New(t, "k1")
	if _, _, err := keys.Write(dir, key); err != nil {
		t.Fatal(err)
	}
	trusted, err := keys.LoadTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := trusted.Current()
	if err := trusted.Reload(); err != nil || trusted.Current() != before {
		t.Errorf("the set was replaced by the same (%v)", err)
	}
	if _, _, err := keys.Write(dir, keytest.New(t, "k2")); err != nil {
		t.Fatal(err)
	}
	if err := trusted.Reload(); err != nil || trusted.Current() == before {
		t.Errorf("a new key was not read (%v)", err)
	}
}
