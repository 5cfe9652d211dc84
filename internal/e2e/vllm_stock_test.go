//go:build e2e

package e2e

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"
)

// until waits for what must come within the time.
func until(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// warmed waits until the gateway has shaken hands for the pair, before any client has asked, and checks that this has left
// nothing behind and that prefill's rank is published.
func (g gateway) warmed(t *testing.T, prefill, decode engine) {
	t.Helper()
	until(t, 3*time.Minute, "the pair has shaken hands", func() bool { return g.counter(t, "pdrouter_pairs_ready") == 1 })
	// A lease would hold the blocks for 30 s: what is free before was given back.
	until(t, slow, "no block is held", func() bool {
		return must(t, scrape(t, prefill.url), "vllm:kv_cache_usage_perc") == 0 && must(t, scrape(t, decode.url), "vllm:kv_cache_usage_perc") == 0
	})
	failed, _ := scrape(t, g.operations).sum("pdrouter_pair_handshakes_total", `outcome="timeout"`)
	if n := must(t, scrape(t, prefill.url), "vllm:nixl_num_kv_expired_reqs_total"); n > failed {
		t.Errorf("%v leases have run out, and %v handshakes were late", n, failed)
	}
	until(t, time.Minute, "prefill's rank is published", func() bool { return g.counter(t, "pdrouter_metadata_engines") == 1 })
}

// counter is one of the gateway's own metrics; 0 if it is missing.
func (g gateway) counter(t *testing.T, name string) float64 {
	t.Helper()
	v, _ := scrape(t, g.operations).sum(name)
	return v
}

// ask sends one short request and returns its status and how it was served.
func (g gateway) ask(t *testing.T) (status int, reason, said string) {
	t.Helper()
	body := []byte(`{"model":"tiny","prompt":"what happens when an engine is started anew","max_tokens":4,"temperature":0}`)
	a, err := http.Post(g.url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, _ := io.ReadAll(a.Body)
	return a.StatusCode, a.Header.Get("x-pdrouter-reason"), string(b)
}
