package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A list that a script left empty must not stand for everything.
func TestEmptyListsAreRefused(t *testing.T) {
	dir := t.TempDir()
	private, _ := makeKey(t, filepath.Join(dir, "k"))
	for name, run := range map[string]func() error{
		"models of a key": func() error {
			return run(t.Context(), []string{"keys", "api", "--file", filepath.Join(dir, "keys"), "--name", "a", "--models", ""}, io.Discard)
		},
		"models of a token": func() error {
			return run(t.Context(), []string{"token", "mint", "--key", private, "--audience", "pdrouter", "--subject", "a", "--models="}, io.Discard)
		},
		"ranks of a token": func() error {
			return run(t.Context(), []string{"token", "mint", "--key", private, "--audience", "pdrouter-metadata", "--subject", "a", "--ranks", ""}, io.Discard)
		},
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), "is empty; leave it out for all") {
			t.Errorf("%s: got %v; want to be told that it is empty", name, err)
		}
	}
}

func TestCheckWarnsOfTenantsWhoAreNobody(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	call(t, "keys", "api", "--file", keys, "--name", "team-a")
	path := writeConfig(t, dir, "  clients: {api_keys_file: keys}\n"+
		"tenants: {named: {team-a: {concurrent: 1}, team-b: {concurrent: 1}, \"https://issuer.example|x\": {concurrent: 1}}}\n")
	out := call(t, "validate", "-c", path)
	if strings.Count(out, "WARNING") != 1 || !strings.Contains(out, "WARNING: tenants.named.team-b limits nobody") {
		t.Errorf("want one warning, of team-b, in\n%s", out)
	}
	if err := os.Remove(keys); err != nil {
		t.Fatal(err)
	}
	if out := call(t, "validate", "-c", path, "--skip-files"); strings.Contains(out, "limits nobody") {
		t.Errorf("without the file: %s", out)
	}
}

func TestCheckWarnsOfTokensWithoutConcurrent(t *testing.T) {
	out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
tenants: {default: {tokens_per_minute: 1000}}
`)
	if err != nil || !strings.Contains(out, "WARNING: tenants.default has tokens_per_minute without concurrent") {
		t.Errorf("%v\n%s", err, out)
	}
}
