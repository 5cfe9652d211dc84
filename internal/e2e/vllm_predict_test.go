//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestVLLMPredictsFirstTokens streams 320 answers from a pair of stock vLLM under the policy cost: prompts of 1,000 to 10,000 tokens, of which a part goes on
// from others. After 200 of them the time to the first token is to be what was predicted, within a quarter in the mean. It measures times
// where engines, gateway and clients share the machine, so it is not of the tests that CI runs: make e2e-vllm-long.
func TestVLLMPredictsFirstTokens(t *testing.T) {
	v := prepare(t, "long")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var p, d engine
	v.step(t, "start prefill and decode", func() {
		p = v.engine(t, role{name: "prefill", cpu: 0, transfer: way.transfer("kv_producer"), context: 32768}, nil)
		d = v.engine(t, role{name: "decode", cpu: 1, transfer: way.transfer("kv_consumer"), context: 32768}, nil)
		p.up(t)
		d.up(t)
	})
	var g gateway
	v.step(t, "start the gateway", func() {
		g = serve(t, v.gateway, config{connector: way.connector, prefill: []backend{p.backend()}, decode: []backend{d.backend()}, more: "policy: {default: {policy: cost}}\n"})
		g.warmed(t, p, d)
	})
	ask := func(prompt []uint32) {
		body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": map[string]bool{"include_usage": true}})
		a, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Error(err)
			return
		}
		said, err := io.ReadAll(a.Body)
		if a.Body.Close(); err != nil || a.StatusCode != http.StatusOK {
			t.Errorf("status %d, %v: %.200s", a.StatusCode, err, said)
		}
	}
	v.step(t, "320 streams", func() {
		var all sync.WaitGroup
		for client := range uint64(2) {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(client, 22))
				var prompt []uint32
				for range 160 {
					n := 300 + rng.IntN(1500) // that are new
					if rng.IntN(3) > 0 || len(prompt) > 8000 {
						prompt, n = nil, 1000+rng.IntN(7000)
					}
					for range n {
						prompt = append(prompt, uint32(20+rng.IntN(200)))
					}
					ask(prompt)
					time.Sleep(time.Duration(rng.ExpFloat64() * float64(200*time.Millisecond)))
				}
			})
		}
		all.Wait()
	})
	is := map[string]*predictions{}
	of := func(name string) *predictions {
		if is[name] == nil {
			is[name] = new(predictions)
		}
		return is[name]
	}
	for _, r := range g.requests(t)[:120] { // those after 200
		path, length := "split", "up to 4,000 tokens"
		if r.Prefill == "" {
			path = "alone"
		}
		if r.Prompt > 4000 {
			length = "more tokens"
		}
		for _, name := range []string{"all", path, path + ", " + length} {
			of(name).add(r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		t.Logf("%-28s %v", name, is[name])
	}
	if e := of("all").wrong(); !(e <= .25) {
		t.Errorf("the time to the first token differs from what was predicted by %.1f %% in the mean; want 25 at most", 100*e)
	}
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	_, _ = p.stop(t, time.Minute), d.stop(t, time.Minute)
}

// predictions are what was predicted of the time to the first token of requests, and what it was.
type predictions struct {
	n                              int
	predicted, was, error, tooLong float64
}

func (p *predictions) add(r finishedRequest) {
	was := (r.Phases.FirstToken - r.Phases.Plan).Seconds()
	p.n++
	p.predicted, p.was = p.predicted+r.PredictedSeconds, p.was+was
	p.error += math.Abs(r.PredictedSeconds-was) / was
	p.tooLong += (r.PredictedSeconds - was) / was
}

// wrong is by which part the time differs from what was predicted, in the mean.
func (p *predictions) wrong() float64 { return p.error / float64(p.n) }

func (p *predictions) String() string {
	n := float64(p.n)
	return fmt.Sprintf("%3d requests: %.1f ms predicted, %.1f ms in truth; wrong by %.1f %%, of it %+.1f %% bias", p.n, 1e3*p.predicted/n, 1e3*p.was/n, 100*p.wrong(), 100*p.tooLong/n)
}
