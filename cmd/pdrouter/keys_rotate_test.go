package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth/keys"
)

// word returns the second word of the line that begins with name.
func word(t *testing.T, out, name string) string {
	t.Helper()
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[1]
		}
	}
	t.Fatalf("no line %q in %s", name, out)
	return ""
}

func TestKeysNewOfEveryAlgorithm(t *testing.T) {
	for _, algorithm := range []string{keys.EdDSA, keys.ES256, keys.RS256} {
		dir := t.TempDir()
		out := call(t, "keys", "new", "--algorithm", algorithm, "--out", dir)
		token := filepath.Join(dir, "token")
		minted := call(t, "token", "mint", "--key", word(t, out, "private"), "--audience", "pdrouter", "--subject", "alice")
		if err := os.WriteFile(token, []byte(minted), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := call(t, "token", "inspect", "--token", token); !strings.Contains(got, `"alg": "`+algorithm+`"`) {
			t.Errorf("the token of an %s key: %s", algorithm, got)
		}
		call(t, "token", "verify", "--token", token, "--keys", word(t, out, "public"), "--audience", "pdrouter")
	}
	if err := run(t.Context(), []string{"keys", "new", "--algorithm", "HS256", "--out", t.TempDir()}, io.Discard); err == nil {
		t.Error("a symmetric key was made")
	}
}

// What an operator does over some days: a token lives on across a rotation, and ends with the key that signed it.
func TestFault38KeysRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "keys")
		published := filepath.Join(t.TempDir(), "published.json")
		rotate := func(more ...string) string {
			return call(t, append([]string{"keys", "rotate", "--dir", dir, "--jwks", published}, more...)...)
		}
		mint := func() string {
			token := filepath.Join(t.TempDir(), "token")
			minted := call(t, "token", "mint", "--key", filepath.Join(dir, "current.jwk"), "--audience", "pdrouter", "--subject", "alice", "--ttl", "24h")
			if err := os.WriteFile(token, []byte(minted), 0o600); err != nil {
				t.Fatal(err)
			}
			return token
		}
		verify := func(token string) error {
			return run(t.Context(), []string{"token", "verify", "--token", token, "--keys", dir, "--audience", "pdrouter"}, io.Discard)
		}
		printed := rotate("--algorithm", "ES256")
		first := word(t, printed, "kid")
		token := mint()
		start := time.Now()
		printed += rotate()
		if got := time.Since(start); got != 6*time.Minute {
			t.Errorf("the second key signs after %v; want 6m", got)
		}
		if got := word(t, printed[strings.Index(printed, "replaced"):], "replaced"); got != first {
			t.Errorf("replaced %s; want %s", got, first)
		}
		for _, one := range []string{token, mint()} {
			if err := verify(one); err != nil {
				t.Errorf("after a rotation: %v", err)
			}
		}
		time.Sleep(23 * time.Hour)
		if err := verify(token); err != nil {
			t.Errorf("before its end: %v", err)
		}
		printed += rotate("--leaked")
		if err := verify(token); err == nil {
			t.Error("the token of a key that was removed is valid")
		}
		if err := verify(mint()); err != nil {
			t.Errorf("the third key: %v", err)
		}
		set, err := os.ReadFile(published)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(set, []byte(`"keys"`)) || bytes.Contains(set, []byte(`"d"`)) || strings.Contains(printed, `"d"`) {
			t.Errorf("published %s", set)
		}
	})
}

func TestKeysRotateUsage(t *testing.T) {
	if help := call(t, "keys", "rotate", "-h"); !strings.Contains(help, "current.jwk") {
		t.Errorf("got %s; want help that names current.jwk", help)
	}
	for name, args := range map[string][]string{
		"no folder":      {"rotate"},
		"negative":       {"rotate", "--dir", t.TempDir(), "--retire-after", "-1s"},
		"stray argument": {"rotate", "--dir", t.TempDir(), "x"},
		"symmetric":      {"rotate", "--dir", t.TempDir(), "--algorithm", "HS256"},
	} {
		if err := run(t.Context(), append([]string{"keys"}, args...), io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
