//go:build e2e

package e2e

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"syscall"
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
	until(t, 15*time.Second, "no block is held", func() bool {
		return must(t, scrape(t, prefill.url), "vllm:kv_cache_usage_perc") == 0 && must(t, scrape(t, decode.url), "vllm:kv_cache_usage_perc") == 0
	})
	if n := must(t, scrape(t, prefill.url), "vllm:nixl_num_kv_expired_reqs_total"); n != 0 {
		t.Errorf("%v leases have run out", n)
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

// reborn kills prefill and starts it again at the same addresses, while requests go on. None fails: decode serves alone
// until the new run is known, which then is shaken hands with once.
func (v *vllm) reborn(t *testing.T, front gateway, prefill engine, transfer string) engine {
	t.Helper()
	handshakes := func() float64 {
		return must(t, scrape(t, front.operations), "pdrouter_pair_handshakes_total", `outcome="done"`)
	}
	before := handshakes()
	_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGKILL) // its workers too
	<-prefill.ended
	again := v.engineAt(t, "prefill again", 0, transfer, []string{strings.TrimPrefix(prefill.url, "http://"), prefill.side})
	reasons := map[string]int{}
	healthy := func() bool { _, err := read(t.Context(), again.url+"/health"); return err == nil }
	last := ""
	until(t, started, "a request is split again", func() bool {
		status, reason, said := front.ask(t)
		if status != http.StatusOK {
			t.Errorf("status %d, reason %q: %s", status, reason, said)
		}
		reasons[reason]++
		last = reason
		time.Sleep(time.Second) // the engine that starts needs the CPU more
		return last == "split" && healthy()
	})
	t.Logf("requests meanwhile, by reason: %v", reasons)
	if len(reasons) < 2 {
		t.Errorf("reasons %v; want requests that decode served alone, and one that was split", reasons)
	}
	if got := handshakes() - before; got != 1 {
		t.Errorf("%v handshakes; want one with the new run", got)
	}
	until(t, time.Minute, "the new run is published, and the old one is not", func() bool { return front.counter(t, "pdrouter_metadata_engines") == 1 })
	return again
}
