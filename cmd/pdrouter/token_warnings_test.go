package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
)

func TestTokenMintWarnings(t *testing.T) {
	for want, g := range map[string]auth.Grant{
		"":                          {Audience: auth.MetadataAudience, Scopes: []string{"write", "read"}, Engine: "e", Role: "prefill", TTL: 24 * time.Hour},
		"the scope wirte gives":     {Audience: auth.MetadataAudience, Scopes: []string{"wirte"}, TTL: time.Hour},
		"the scope plane gives":     {Audience: auth.AdminAudience, Scopes: []string{"read", "write", "engines", "plane"}, TTL: time.Hour},
		"without --scope the token": {Audience: auth.MetadataAudience, Engine: "e", Role: "decode", TTL: time.Hour},
		"--role without --engine":   {Audience: auth.MetadataAudience, Scopes: []string{"read"}, Role: "decode", TTL: time.Hour},
		"the token lives 25h0m0s":   {Audience: auth.ClientAudience, TTL: 25 * time.Hour},
	} {
		got := mintWarnings(g)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%+v: got %q; want %q", g, got, want)
		}
	}
	if got := mintWarnings(auth.Grant{Audience: auth.ClientAudience, Scopes: []string{"any"}, TTL: time.Hour}); len(got) > 0 {
		t.Errorf("a client's token: %q", got)
	}
}

// An API key in place of a token is told apart, and not quoted.
func TestTokenVerifyOfAPIKey(t *testing.T) {
	dir := t.TempDir()
	_, public := makeKey(t, filepath.Join(dir, "keys"))
	key, err := auth.AppendAPIKey(filepath.Join(dir, "api-keys"), "alice", nil, auth.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), []string{"token", "verify", "--token", file, "--keys", public, "--audience", "pdrouter"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "this is an API key, no token") || strings.Contains(err.Error(), key) {
		t.Errorf("got %v", err)
	}
}
