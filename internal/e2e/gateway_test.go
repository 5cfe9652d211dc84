package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gateway is a running pdrouter serve.
type gateway struct {
	*process
	url        string // the clients' listener
	operations string
	file       string // its configuration
}

// backend is an engine as the configuration names it, by base URLs.
type backend struct {
	url, control string   // control is empty for engines of others
	side         string   // host:port of the side channel, to be said in the configuration; mostly empty
	plain        bool     // it calls requests as it is told to
	events       []string // host:port where it publishes KV events, and where it replays them; nil: it is not followed
	drain        bool     // it takes no more requests
}

// config is what the tests say in a configuration file. agents is the agents' listener, and more is written as it
// stands; both are for what only one test needs.
type config struct {
	connector                string
	model                    string // default tiny
	prefill, decode, engines []backend
	agents, more             string
	first                    string // first_token of the model; default decode
	retokenize               bool   // retokenize_on_decode of the model
}

// text renders the file. Its waits are long: where two engines and the tests share two CPUs, seconds prove nothing. A transfer has longer
// than the lease of prefill, so that what comes late is served, and what never comes is retried before a client gives up.
func (c config) text(clients, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q, agents: %q}\n", clients, operations, c.agents)
	fmt.Fprintf(&b, "timeouts: {request: 240s, prefill: 180s, transfer: 40s, pair: 180s, probe: 180s, cleanup: 120s}\n")
	fmt.Fprintf(&b, "models:\n  - name: %s\n    connector: %s\n", cmp.Or(c.model, "tiny"), c.connector)
	if c.first != "" {
		fmt.Fprintf(&b, "    first_token: %s\n", c.first)
	}
	if c.retokenize {
		b.WriteString("    retokenize_on_decode: true\n")
	}
	for _, role := range []struct {
		name string
		is   []backend
	}{{"prefill", c.prefill}, {"decode", c.decode}, {"engines", c.engines}} {
		if len(role.is) == 0 {
			continue
		}
		fmt.Fprintf(&b, "    %s:\n", role.name)
		for i, e := range role.is {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: %q, control: %q, side_channel: %q, request_id_randomization_disabled: %v, drain: %v", role.name, i, e.url, e.control, e.side, e.plain, e.drain)
			if e.events != nil {
				fmt.Fprintf(&b, ", kv_events: {endpoint: tcp://%s, replay_endpoint: tcp://%s}", e.events[0], e.events[1])
			}
			b.WriteString("}\n")
		}
	}
	if !strings.Contains(c.more, "policy:") {
		b.WriteString("policy: {default: {policy: roles}}\n") // what can be split is split
	}
	return b.String() + c.more
}

// serve starts the gateway and waits until it is ready.
func serve(t *testing.T, binary string, c config) gateway {
	t.Helper()
	g := launch(t, binary, c)
	g.ready(t, g.operations+"/ready", 3*time.Minute)
	return g
}

// launch starts the gateway, which is ready when its engines are.
func launch(t *testing.T, binary string, c config) gateway {
	t.Helper()
	at := freeAddresses(t, 2)
	g := gateway{url: "http://" + at[0], operations: "http://" + at[1], file: filepath.Join(t.TempDir(), "gateway.yaml")}
	g.write(t, c)
	g.process = start(t, "pdrouter", nil, binary, "serve", "-c", g.file)
	g.ready(t, g.operations+"/metrics", time.Minute)
	return g
}

// write writes the configuration, with the gateway's own listeners.
func (g gateway) write(t *testing.T, c config) {
	t.Helper()
	text := c.text(strings.TrimPrefix(g.url, "http://"), strings.TrimPrefix(g.operations, "http://"))
	if err := os.WriteFile(g.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// report is what scenarios.py says about one run of it.
type report struct {
	Requests     int            `json:"requests"`
	HandOffs     int            `json:"hand_offs"`
	PromptTokens int            `json:"prompt_tokens"`
	Reasons      map[string]int `json:"reasons"`
}

// compare asks the gateway every scenario of the kinds and fails the test if an answer differs from the recorded ones.
func compare(t *testing.T, url, python, answers string, kinds ...string) report {
	t.Helper()
	r, err := tryCompare(t, url, python, answers, kinds...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// tryCompare is compare. It returns an error if the only differences are in how requests were served.
func tryCompare(t *testing.T, url, python, answers string, kinds ...string) (report, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.CommandContext(t.Context(), python, append([]string{"scenarios.py", "compare", url, answers, path}, kinds...)...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	ran := cmd.Run()
	if ran != nil && cmd.ProcessState.ExitCode() != servedOtherwise {
		t.Fatalf("scenarios.py: %v", ran)
	}
	var r report
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests == 0 || r.PromptTokens == 0 {
		t.Fatalf("scenarios.py asked nothing: %+v", r)
	}
	return r, ran
}

// servedOtherwise is the exit status of scenarios.py if all answers are right, but some requests were served in another way than they
// should be.
const servedOtherwise = 3
