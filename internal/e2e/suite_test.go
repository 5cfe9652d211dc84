package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// suiteSeen is what every client of the suite must have seen.
const suiteSeen = `{
	"chat": {"text": "one two three", "finish": "stop"},
	"completion": "one two three",
	"stream": {"text": "one two three", "usage": [11, 3, 4], "several": true},
	"tools": {"name": "get_weather", "arguments": {"city": "Bern"}},
	"tools_stream": {"name": "get_weather", "arguments": {"city": "Bern"}},
	"structured": {"city": "Bern", "degrees": 7},
	"usage": [11, 3, 4],
	"models": ["scripted"],
	"bad_request": {"status": 400, "type": "BadRequestError", "reason": "decode_rejected"},
	"not_found": {"status": 404, "type": "NotFoundError", "reason": "unknown_model"},
	"unauthorized": {"status": 401, "type": "AuthenticationError", "reason": "unauthorized"},
	"busy": {"status": 503, "type": "ServiceUnavailableError", "reason": "engine_refused"},
	"retried": "one two three",
	"timeout": "timeout",
	"cancel": "one",
	"cut": {"text": "one two", "error": true}
}`

// TestOpenAIClients has the openai clients for Python, JavaScript and Go ask the built binary all that the suite has, and
// compares what they saw, and what came to the engine.
func TestOpenAIClients(t *testing.T) {
	var want any
	if err := json.Unmarshal([]byte(suiteSeen), &want); err != nil {
		t.Fatal(err)
	}
	c := clients{binary: build(t)}
	engine := newFakeScripted(t)
	keys := filepath.Join(t.TempDir(), "api-keys")
	t.Setenv("OPENAI_API_KEY", strings.TrimSpace(c.run(t, "keys", "api", "--file", keys, "--name", "client")))
	g := serve(t, c.binary, config{connector: "none", model: "scripted", engines: []backend{{url: engine.URL}},
		more: fmt.Sprintf("limits: {attempts: 1}\nauth: {clients: {api_keys_file: %q}}\n", keys)})
	installed := func(parts ...string) string { return filepath.Join(append([]string{root(t), ".deps"}, parts...)...) }
	for _, client := range []struct {
		tag  string
		argv []string // the first is a file, or a program that is installed
		need string   // a file that shows that the client is there
	}{
		{"python", []string{installed("openai", "bin", "python"), "suite/suite.py"}, installed("openai", "bin", "python")},
		{"javascript", []string{"node", installed("openai-js", "suite.mjs")}, installed("openai-js", "installed")},
		{"go", []string{installed("openai-go", "suite")}, installed("openai-go", "suite")},
	} {
		t.Run(client.tag, func(t *testing.T) {
			if _, err := os.Stat(client.need); err != nil {
				t.Skipf("the openai client for %s is not installed; internal/deps/openai.sh installs it", client.tag)
			}
			cmd := exec.CommandContext(t.Context(), client.argv[0], append(client.argv[1:], g.url, client.tag)...)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var got any
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the client saw (-want +got):\n%s", diff)
			}
			for word, want := range map[string][2]int{
				"chat": {2, 0}, "reject": {1, 0}, "busy": {1, 0}, "soon": {2, 0}, "hang": {1, 1}, "endless": {1, 1}, "cut": {1, 0},
			} {
				var asked, left int
				for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					if asked, left = engine.count(client.tag + " " + word); asked >= want[0] && left >= want[1] {
						break
					}
				}
				if asked != want[0] || left != want[1] {
					t.Errorf("%s: the engine was asked %d times and left %d times; want %d and %d", word, asked, left, want[0], want[1])
				}
			}
		})
	}
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}
