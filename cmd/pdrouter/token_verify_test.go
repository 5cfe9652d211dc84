package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An operator is told why a token is refused, which its bearer never is.
func TestTokenVerifySaysWhy(t *testing.T) {
	dir := t.TempDir()
	private, public := makeKey(t, filepath.Join(dir, "keys"))
	_, other := makeKey(t, filepath.Join(dir, "other"))
	mint := func(args ...string) string {
		file := filepath.Join(dir, "token")
		token := call(t, append([]string{"token", "mint", "--key", private, "--subject", "a"}, args...)...)
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	b, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	set := filepath.Join(dir, "set.json")
	text, err := json.Marshal(map[string]any{"keys": []json.RawMessage{b}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(set, text, 0o600); err != nil {
		t.Fatal(err)
	}
	token := mint("--audience", "pdrouter")
	if got := call(t, "token", "verify", "--token", token, "--jwks", set, "--audience", "pdrouter"); !strings.HasPrefix(got, "valid: subject a") {
		t.Errorf("with a key set: %s", got)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"unknown key", []string{"--keys", other, "--audience", "pdrouter"}},
		{"iss is pdrouter; want idp", []string{"--keys", public, "--audience", "pdrouter", "--issuer", "idp"}},
		{"a token for pdrouter; you asked for pdrouter-admin", []string{"--keys", public, "--audience", "pdrouter-admin"}},
		{"want it to begin with system:serviceaccount:", []string{"--keys", public, "--audience", "pdrouter", "--kind", "kubernetes"}},
		{"lives 1h0m0s; want at most 1m0s", []string{"--keys", public, "--audience", "pdrouter", "--max-lifetime", "1m"}},
		{"lacks the scope write", []string{"--keys", public, "--audience", "pdrouter", "--scope", "write"}},
		{"kind is", []string{"--keys", public, "--audience", "pdrouter", "--kind", "x"}},
		{"want --audience pdrouter, pdrouter-metadata or pdrouter-admin", []string{"--keys", public, "--audience", "x"}},
		{`required flag(s) "audience" not set`, []string{"--keys", public}},
		{"at least one of the flags in the group [keys jwks] is required", []string{"--audience", "pdrouter"}},
	} {
		err := run(t.Context(), append([]string{"token", "verify", "--token", token}, c.args...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v; want %q", c.args, err, c.want)
		}
	}
}

func TestTokenMintForRanksAndLimits(t *testing.T) {
	dir := t.TempDir()
	private, _ := makeKey(t, filepath.Join(dir, "keys"))
	_, own := makeKey(t, filepath.Join(dir, "own"))
	show := func(args ...string) string {
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(call(t, append([]string{"token", "mint", "--key", private, "--subject", "a"}, args...)...)), 0o600); err != nil {
			t.Fatal(err)
		}
		return call(t, "token", "inspect", "--token", file)
	}
	agent := show("--audience", "pdrouter-metadata", "--engine", "e", "--role", "prefill", "--ranks", "0/0/0,0/0/1", "--size", "1/1/2", "--confirm", own)
	for _, want := range []string{`"0/0/1"`, `"cnf"`, `"crv": "Ed25519"`} {
		if !strings.Contains(agent, want) {
			t.Errorf("want %s in %s", want, agent)
		}
	}
	if client := show("--audience", "pdrouter", "--limits", "requests=60,concurrent=4"); !strings.Contains(client, `"requests_per_minute": 60`) || !strings.Contains(client, `"concurrent": 4`) {
		t.Errorf("the limits are not in %s", client)
	}
	for _, args := range [][]string{
		{"--audience", "pdrouter-metadata", "--ranks", "0"},
		{"--audience", "pdrouter", "--ranks", "0/0/0"},
		{"--audience", "pdrouter", "--confirm", own},
		{"--audience", "pdrouter", "--limits", "requests=-1"},
		{"--audience", "pdrouter", "--limits", "bytes=1"},
		{"--audience", "pdrouter", "--development-secret", own},
	} {
		if err := run(t.Context(), append([]string{"token", "mint", "--key", private, "--subject", "a"}, args...), io.Discard); err == nil {
			t.Errorf("%v: minted", args)
		}
	}
}
