package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
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
}

// config is what the tests say in a configuration file. more is written as it is, for what only one test needs.
type config struct {
	connector                string
	prefill, decode, engines []string // base URLs
	more                     string
}

// text renders the file. Its waits are long: where two engines and the tests share two CPUs, seconds prove nothing.
func (c config) text(clients, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q}\n", clients, operations)
	fmt.Fprintf(&b, "timeouts: {request: 240s, prefill: 180s, transfer: 120s, pair: 180s, probe: 180s, ending: 120s}\n")
	fmt.Fprintf(&b, "models:\n  - name: tiny\n    connector: %s\n", c.connector)
	for _, role := range []struct {
		name string
		urls []string
	}{{"prefill", c.prefill}, {"decode", c.decode}, {"engines", c.engines}} {
		if len(role.urls) == 0 {
			continue
		}
		fmt.Fprintf(&b, "    %s:\n", role.name)
		for i, url := range role.urls {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: %q}\n", role.name, i, url)
		}
	}
	return b.String() + c.more
}

// serve starts the gateway and waits until it is ready.
func serve(t *testing.T, binary string, c config) gateway {
	t.Helper()
	at := freeAddresses(t, 2)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(c.text(at[0], at[1])), 0o600); err != nil {
		t.Fatal(err)
	}
	g := gateway{start(t, "pdrouter", nil, binary, "serve", "-c", path), "http://" + at[0], "http://" + at[1]}
	g.ready(t, g.operations+"/ready", 3*time.Minute)
	return g
}

// warm asks until a request has been split over the pair: the first use of a pair costs its handshakes, and an engine
// that has just started is slow.
func (g gateway) warm(t *testing.T) {
	t.Helper()
	last := "no answer"
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		body := []byte(`{"model":"tiny","prompt":"a first request, to warm the pair","max_tokens":2,"temperature":0}`)
		a, err := http.Post(g.url+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			last = err.Error()
			continue
		}
		said, _ := io.ReadAll(a.Body)
		a.Body.Close()
		reason := a.Header.Get("x-pdrouter-reason")
		if a.StatusCode == http.StatusOK && reason == "split" {
			return
		}
		last = fmt.Sprintf("status %d, reason %q: %s", a.StatusCode, reason, said)
	}
	t.Fatalf("pdrouter splits no request: %s", last)
}
