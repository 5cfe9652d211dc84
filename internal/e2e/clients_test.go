package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOpenAIClient drives the built binary with the openai Python client in front of reference engines, aggregated
// and split over the KV plane, and compares every answer with that of one engine alone.
func TestOpenAIClient(t *testing.T) {
	python := filepath.Join(root(t), ".deps", "openai", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the openai client is not installed; internal/deps/openai.sh installs it")
	}
	c := clients{binary: build(t), python: python, answers: filepath.Join(t.TempDir(), "answers.json")}
	alone := freeAddresses(t, 1)[0]
	c.engine(t, "alone", "both", alone)
	runs(t, python, "scenarios.py", "record", "http://"+alone, c.answers, "split", "fan", "alone")
	t.Run("aggregated", c.aggregated)
	t.Run("kvplane", c.kvplane)
}

// clients is what the parts of TestOpenAIClient share.
type clients struct {
	binary, python string
	answers        string // a file: what one engine alone answers
}

// engine starts a reference engine that listens on address.
func (c clients) engine(t *testing.T, name, role, address string, more ...string) *process {
	t.Helper()
	argv := append([]string{c.binary, "mock-engine", "--name", name, "--model", "tiny", "--role", role, "--listen", address}, more...)
	p := start(t, name, nil, argv...)
	p.ready(t, "http://"+address+"/health", time.Minute)
	return p
}

func (c clients) aggregated(t *testing.T) {
	at := freeAddresses(t, 2)
	c.engine(t, "engine-0", "both", at[0])
	c.engine(t, "engine-1", "both", at[1])
	g := serve(t, c.binary, config{connector: "none", engines: []backend{{url: "http://" + at[0]}, {url: "http://" + at[1]}}})
	compare(t, g.url, c.python, c.answers, "whole", "split", "fan", "alone", "refuse")
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}

// kvplane splits over a prefill engine of two ranks and a decode engine of one, with clients' keys and agents' tokens.
func (c clients) kvplane(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	c.run(t, "keys", "new", "--out", keys)
	private, err := filepath.Glob(filepath.Join(keys, "*"))
	if err != nil || len(private) == 0 {
		t.Fatalf("pdrouter keys new wrote %v, %v", private, err)
	}
	signer := private[0]
	for _, f := range private { // the private half is the file that others may not read
		if i, err := os.Stat(f); err == nil && i.Mode().Perm()&0o077 == 0 {
			signer = f
		}
	}
	t.Setenv("OPENAI_API_KEY", strings.TrimSpace(c.run(t, "keys", "api", "--file", filepath.Join(dir, "api-keys"), "--name", "client")))
	mint := func(name string, more ...string) string {
		argv := append([]string{"token", "mint", "--key", signer, "--audience", "pdrouter-metadata", "--subject", name}, more...)
		path := filepath.Join(dir, name+".token")
		if err := os.WriteFile(path, []byte(c.run(t, argv...)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	control := mint("gateway", "--scope", "plane")

	at := freeAddresses(t, 5)
	url := func(i int) string { return "http://" + at[i] }
	started := make(chan *process, 2)
	for i, role := range []string{"prefill", "decode"} {
		token := mint(role+"-0", "--engine", role+"-0", "--role", role, "--scope", "write read plane")
		p := start(t, role+"-0", nil, c.binary, "mock-engine", "--name", role+"-0", "--model", "tiny", "--role", role, "--tp", fmt.Sprint(2-i),
			"--listen", at[2*i], "--control", at[2*i+1], "--gateway", url(4), "--token-file", token, "--control-keys", keys)
		started <- p
	}
	g := serve(t, c.binary, config{
		connector: "kvplane", prefill: []backend{{url: url(0), control: url(1)}}, decode: []backend{{url: url(2), control: url(3)}}, agents: at[4],
		more: fmt.Sprintf("auth:\n  agents: {keys: [%q], issuer: pdrouter}\n  control_token_file: %q\n  clients: {api_keys_file: %q}\n", keys, control, filepath.Join(dir, "api-keys")),
	})
	for _, address := range []string{at[0], at[2]} {
		(<-started).ready(t, "http://"+address+"/health", time.Minute)
	}
	compare(t, g.url, c.python, c.answers, "split", "fan", "alone", "refuse")
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}

// run runs a command of the binary to its end and returns what it printed.
func (c clients) run(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.binary, argv...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pdrouter %s: %v", strings.Join(argv, " "), err)
	}
	return string(out)
}
