package configfile_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
	"pdrouter/internal/reload"
)

// TestIdentitiesOfPlatforms: the configuration that the documentation shows can be used.
func TestIdentitiesOfPlatforms(t *testing.T) {
	out, err := check(t, "../../configs/identities.yaml", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"tokens of https://kubernetes.default.svc.cluster.local, https://spire.example.org",
		"probes: everybody who reaches it; the rest: tokens of https://kubernetes.default.svc.cluster.local",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}

// writeConfig writes a configuration whose auth section is given, and returns its path.
func writeConfig(t *testing.T, dir, authSection string) string {
	t.Helper()
	path := filepath.Join(dir, "config.yaml")
	text := "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels:\n  - {name: m, engines: [{name: e, url: \"http://127.0.0.1:1\"}]}\nauth:\n" + authSection
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDevelopmentSecretIsSaidLoudly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	path := writeConfig(t, dir, "  clients: {issuers: [{issuer: dev, development_secret_file: secret}]}\n")
	if out, err := check(t, path, false); err != nil || !strings.Contains(out, "WARNING: DEVELOPMENT ONLY: auth.clients") {
		t.Errorf("check says nothing of it:\n%s", out)
	}
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := l.Auth.NewClients(nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := keys.DevelopmentSecret(filepath.Join(dir, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := auth.Mint(secret, auth.Grant{Issuer: "dev", Audience: auth.ClientAudience, Subject: "me", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := clients.Authenticate("Bearer " + token); err != nil || p.Subject != "me" {
		t.Errorf("got %+v, %v; want me", p, err)
	}
	var log strings.Builder
	r := &reload.Credentials{Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Run(l.Auth.DevelopmentWarnings()...)(ctx); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "DEVELOPMENT ONLY") {
		t.Errorf("serve says nothing of it: %s", log.String())
	}
}

// An issuer whose keys are published is asked for them before the first caller could be refused.
func TestServeAsksIssuersForTheirKeys(t *testing.T) {
	dir := t.TempDir()
	key, _, public := makeKey(t, filepath.Join(dir, "keys"))
	b, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []json.RawMessage{b}})
	}))
	defer issuer.Close()
	l, err := configfile.Load(writeConfig(t, dir, "  clients: {issuers: [{issuer: idp, jwks: {url: \""+issuer.URL+"\"}}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var files reload.Credentials
	clients, err := l.Auth.NewClients(&files)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- files.Run()(ctx) }()
	files.Asked(ctx)
	token, err := auth.Mint(key, auth.Grant{Issuer: "idp", Audience: auth.ClientAudience, Subject: "alice", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := clients.Authenticate("Bearer " + token); err != nil || p.Subject != "alice" {
		t.Errorf("got %+v, %v; want alice", p, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
