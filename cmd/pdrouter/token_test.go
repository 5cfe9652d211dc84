package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/internal/gateway"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// call runs a subcommand and returns what it printed.
func call(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	return out.String()
}

// makeKey runs "keys new" and returns the paths it printed.
func makeKey(t *testing.T, dir string) (private, public string) {
	t.Helper()
	for line := range strings.Lines(call(t, "keys", "new", "--out", dir)) {
		switch f := strings.Fields(line); f[0] {
		case "private":
			private = f[1]
		case "public":
			public = f[1]
		}
	}
	return private, public
}

func TestKeysNewKeepsThePrivatePart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	out := call(t, "keys", "new", "--out", dir)
	private, public := makeKey(t, filepath.Join(t.TempDir(), "keys"))
	info, err := os.Stat(private)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode().Perm(), os.FileMode(0o600); got != want {
		t.Errorf("mode of the private key is %v; want %v", got, want)
	}
	secret, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(secret, []byte(`"d"`)) {
		t.Error("the private file has no private part")
	}
	shown, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(shown, []byte(`"d"`)) || strings.Contains(out, `"d"`) {
		t.Error("the private part is shown")
	}
}

func TestTokenMintInspectVerify(t *testing.T) {
	dir := t.TempDir()
	private, public := makeKey(t, filepath.Join(dir, "keys"))
	token := call(t, "token", "mint", "--key", private, "--audience", "pdrouter-metadata", "--subject", "agent-0",
		"--engine", "prefill-0", "--role", "prefill", "--scope", "write read plane", "--ttl", "1h")
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := call(t, "token", "inspect", "--token", file); !strings.Contains(got, `"engine_id": "prefill-0"`) {
		t.Errorf("inspect printed %s", got)
	}
	if got, want := call(t, "token", "verify", "--token", file, "--keys", public, "--audience", "pdrouter-metadata", "--scope", "write"), "valid: subject agent-0"; !strings.HasPrefix(got, want) {
		t.Errorf("verify printed %q; want %q", got, want)
	}
	for name, args := range map[string][]string{
		"another audience": {"verify", "--token", file, "--keys", public, "--audience", "pdrouter"},
		"another scope":    {"verify", "--token", file, "--keys", public, "--audience", "pdrouter-metadata", "--scope", "admin"},
		"no keys":          {"verify", "--token", file, "--audience", "pdrouter-metadata"},
		"public key":       {"mint", "--key", public, "--audience", "pdrouter", "--subject", "x"},
		"stray argument":   {"mint", "--key", private, "--audience", "pdrouter", "--subject", "x", "y"},
		"unknown command":  {"forge"},
	} {
		if err := run(t.Context(), append([]string{"token"}, args...), io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if help := call(t, "token"); !strings.Contains(help, "mint") {
		t.Errorf("without a command: got %s; want help that names mint", help)
	}
}

func TestKeysAPIAdmitsItsBearer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "api-keys")
	key := strings.TrimSpace(call(t, "keys", "api", "--file", file, "--name", "alice", "--models", "tiny,org/big:1"))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte(key)) {
		t.Error("the file holds the key itself")
	}
	keys, err := auth.LoadAPIKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := auth.NewClients(auth.ClientsConfig{APIKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	p, err := clients.Authenticate("Bearer " + key)
	if err != nil || p.Subject != "alice" || !p.Permits("org/big:1") || p.Permits("other") {
		t.Errorf("got %+v, %v; want alice, who may name tiny and org/big:1", p, err)
	}
}

// An agent with a token from the command line publishes and reads over the real routes.
func TestAgentsAuthorizerOverTheRoutes(t *testing.T) {
	private, public := makeKey(t, filepath.Join(t.TempDir(), "keys"))
	trusted, err := keys.LoadTrusted(public)
	if err != nil {
		t.Fatal(err)
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: defaultIssuer, Audience: auth.MetadataAudience}, trusted)
	if err != nil {
		t.Fatal(err)
	}
	agents, err := auth.NewAgents(v)
	if err != nil {
		t.Fatal(err)
	}
	own, err := keys.Load(private)
	if err != nil {
		t.Fatal(err)
	}
	records, err := records.New(own, trusted)
	if err != nil {
		t.Fatal(err)
	}
	url := routestest.Serve(t, store.NewMemory(), records, gateway.AuthorizeAgents(agents))
	agent := func(engine, role string) *client.Client {
		token := strings.TrimSpace(call(t, "token", "mint", "--key", private, "--audience", "pdrouter-metadata", "--subject", engine,
			"--engine", engine, "--role", role, "--scope", "write read"))
		c, err := client.New(client.Config{URL: url}, func() (string, error) { return token, nil }, records, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	now := time.Now()
	rec := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: "prefill-0", Generation: uint64(now.UnixNano())},
		Role: metadata.Prefill, Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Connector: "vllm-nixl-push", Published: now, Expires: now.Add(time.Minute),
	}
	peer := rec
	peer.Engine, peer.Role = "decode-0", metadata.Decode
	if err := agent("decode-0", "decode").Put(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	if err := agent("prefill-0", "prefill").Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	recs, err := agent("decode-0", "decode").Engine(t.Context(), "prefill-0")
	if err != nil || len(recs) != 1 || recs[0].KeyID != own.ID {
		t.Errorf("decode-0 read %+v, %v; want one record signed by %s", recs, err, own.ID)
	}
	var status *client.StatusError
	if _, err := agent("prefill-1", "prefill").Engine(t.Context(), "prefill-0"); !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Errorf("prefill-1 read prefill-0: got %v; want 403", err)
	}
	rec.Published = now.Add(time.Second)
	if err := agent("decode-0", "decode").Put(t.Context(), rec); !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Errorf("decode-0 wrote prefill-0: got %v; want 403", err)
	}
}

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
