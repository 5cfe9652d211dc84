package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/demo"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
	"pdrouter/router"
)

// TestModelWithoutConnectorIsServedAlone: a prefill engine of a model of connector kvplane that has published nothing, or a
// record without a connector, is left out, with a reason and no error: decode serves alone.
func TestModelWithoutConnectorIsServedAlone(t *testing.T) {
	dir := t.TempDir()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := keys.Write(filepath.Join(dir, "keys"), key)
	if err != nil {
		t.Fatal(err)
	}
	token := func(engine, role string) string {
		s, err := auth.Mint(key, auth.Grant{Issuer: defaultIssuer, Audience: auth.MetadataAudience, Subject: "test", TTL: time.Hour,
			Scopes: []string{auth.WriteScope, auth.ReadScope, auth.PlaneScope}, Engine: engine, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "token-"+engine)
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ports, err := demo.FreeAddresses(4)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`listen: {clients: "127.0.0.1:0", agents: "127.0.0.1:0", operations: "127.0.0.1:0"}
models:
- name: reference
  connector: kvplane
  prefill: [{name: prefill-0, url: "http://%s", control: "http://%s"}]
  decode: [{name: decode-0, url: "http://%s", control: "http://%s"}]
policy: {default: {split: {min_prompt_tokens: 1}, prefill: round_robin, decode: round_robin}}
auth: {agents: {keys: [%q], issuer: %s}, records: {key_file: %q, trusted: [%q]}, control_token_file: %q}
`, ports[0], ports[1], ports[2], ports[3], public, defaultIssuer, private, public, token("", ""))
	file := filepath.Join(dir, "pdrouter.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serveFile(t, file)
	agents := "http://" + g.Agents().String()
	alone := startEngine(t, "--name", "prefill-0", "--role", "both", "--listen", ports[0]) // hands nothing over
	startEngine(t, "--name", "decode-0", "--role", "decode", "--listen", ports[2], "--control", ports[3], "--gateway", agents,
		"--token-file", token("decode-0", "decode"), "--control-keys", public, "--record-keys", public, "--transport", "tcp")

	body := `{"model":"reference","prompt":"one two three four five six seven eight nine ten","max_tokens":12}`
	_, want, err := complete(alone.url, body)
	if err != nil || want == "" {
		t.Fatalf("the engine alone: %q, %v", want, err)
	}
	ask := func(when string) {
		t.Helper()
		for range 3 {
			resp, err := http.Post("http://"+g.Clients().String()+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if reason := resp.Header.Get("X-PDRouter-Reason"); resp.StatusCode != http.StatusOK || reason != "no_pair" {
				t.Errorf("%s: status %d, reason %q; want 200 and no_pair", when, resp.StatusCode, reason)
			}
			if _, got, err := complete("http://"+g.Clients().String(), body); err != nil || got != want {
				t.Errorf("%s: got %q, %v; want %q", when, got, err, want)
			}
		}
	}
	until(t, "the engines are up", func() bool { // the first check of the health of either may have been refused
		return !slices.ContainsFunc(readiness(t, g).Engines, func(e router.EngineStats) bool { return !e.Up })
	})
	ask("without a record")
	agent, err := client.New(client.Config{URL: agents}, client.TokenFile(token("prefill-0", "prefill")), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := agent.Put(t.Context(), metadata.Record{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: "prefill-0", Generation: uint64(now.UnixNano())},
		Role: metadata.Prefill, Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Published: now, Expires: now.Add(time.Minute),
	}); err != nil {
		t.Fatal(err)
	}
	until(t, "the record is seen", func() bool {
		pairs := readiness(t, g).Pairs
		return len(pairs) == 1 && strings.Contains(pairs[0].Why, "connector")
	})
	ask("with a record without connector")
	for _, p := range readiness(t, g).Pairs {
		if p.Pairable || p.Warm || !strings.Contains(p.Why, "connector") {
			t.Errorf("pair %+v; want it not pairable for want of a connector", p)
		}
	}
}
