package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFault63OpenAIClientIsLimited has the openai client meet the limit of its API key: an error that it knows, and
// retries when it was told to come back.
func TestFault63OpenAIClientIsLimited(t *testing.T) {
	python := filepath.Join(root(t), ".deps", "openai", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the openai client is not installed; internal/deps/openai.sh installs it")
	}
	c := clients{binary: build(t), python: python}
	at := freeAddresses(t, 1)[0]
	c.engine(t, "engine-0", "both", at)
	keys := filepath.Join(t.TempDir(), "api-keys")
	t.Setenv("OPENAI_API_KEY", strings.TrimSpace(c.run(t, "keys", "api", "--file", keys, "--name", "client", "--requests-per-minute", "30")))
	g := serve(t, c.binary, config{connector: "none", engines: []backend{{url: "http://" + at}},
		more: fmt.Sprintf("auth: {clients: {api_keys_file: %q}}\n", keys)})
	runs(t, python, "limits.py", g.url, "30")
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}
