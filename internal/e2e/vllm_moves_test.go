//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestStockVLLMMoves drains one of two engines of stock vLLM, each of which serves alone: the conversations that it has are moved to the other
// one, which computes of their next turns only what is new, by its own counters, and answers as the first one would.
func TestStockVLLMMoves(t *testing.T) {
	v := prepare(t, "full")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var both [2]engine
	v.step(t, "start two instances", func() {
		for i := range both {
			both[i] = v.engine(t, role{name: fmt.Sprintf("engine-%d", i), cpu: i, transfer: way.transfer("kv_both")}, nil)
		}
		for _, e := range both {
			e.up(t)
		}
	})
	is := config{connector: way.connector, engines: []backend{both[0].backend(), both[1].backend()},
		more: "policy: {default: {split: {min_prompt_tokens: 100000}, decode: session}}\nmigration: {mode: enabled, min_tokens: 64}\n"}
	var g gateway
	v.step(t, "start the gateway", func() {
		g = serve(t, v.gateway, is)
		until(t, 2*slow, "the pairs have shaken hands", func() bool { return g.counter(t, "pdrouter_pairs_ready") == 2 })
	})
	conversations := map[string][][]uint32{} // prompts with their answers, by engine
	v.step(t, "first turns", func() {
		for i := range 6 {
			prompt := make([]uint32, 340+120*i)
			for k := range prompt {
				prompt[k] = uint32(100 + (37*i+11*k+k*k)%200)
			}
			whole, at := g.completes(t, prompt, fmt.Sprintf("session %d", i))
			conversations[at] = append(conversations[at], whole)
		}
	})
	from, to := 0, 1
	if len(conversations["engines-1"]) > len(conversations["engines-0"]) {
		from, to = 1, 0
	}
	gone := conversations[fmt.Sprintf("engines-%d", from)]
	before := scrape(t, both[to].url)
	v.step(t, "drain one", func() {
		is.engines[from].drain = true
		g.write(t, is)
		if err := g.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, slow, "all its conversations are moved", func() bool {
			n, _ := scrape(t, g.operations).sum("pdrouter_migrations_total", `result="moved"`)
			return n == float64(len(gone))
		})
	})
	source := func(name string) float64 {
		n, _ := scrape(t, both[to].url).sum("vllm:prompt_tokens_by_source_total", `source="`+name+`"`)
		was, _ := before.sum("vllm:prompt_tokens_by_source_total", `source="`+name+`"`)
		return n - was
	}
	moved, computed := source("external_kv_transfer"), source("local_compute")
	bytes, _ := scrape(t, g.operations).sum("pdrouter_migrated_bytes_total")
	t.Logf("%d conversations are moved: %v tokens read, %v computed, %v bytes", len(gone), moved, computed, bytes)
	if bytes == 0 {
		t.Error("the gateway counts no bytes of moves")
	}
	if computed > float64(len(gone)) { // the last token of a prompt may be counted as computed
		t.Errorf("%v tokens of what is moved were computed", computed)
	}
	v.step(t, "next turns", func() {
		const fresh = 50
		alone := gateway{url: both[from].url} // as it still has its own cache
		for i, whole := range gone {
			next := slices.Clone(whole)
			for k := range uint32(fresh) {
				next = append(next, 120+(k*7)%100)
			}
			got, at := g.completes(t, next, fmt.Sprintf("next %d", i))
			want, _ := alone.completes(t, next)
			if at != fmt.Sprintf("engines-%d", to) || !slices.Equal(got, want) {
				t.Errorf("conversation %d: at %s %v, want %v", i, at, got[len(next):], want[len(next):])
			}
		}
		if n := source("local_compute") - computed; n > float64(len(gone)*(fresh+1+blockTokens)) {
			t.Errorf("%v tokens of %d next turns were computed; want %d and what is less than a block of each", n, len(gone), fresh)
		} else {
			t.Logf("%v tokens of %d next turns were computed", n, len(gone))
		}
	})
	until(t, slow, "no engine holds a block", func() bool { return unused(t, both[0]) && unused(t, both[1]) })
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	for _, e := range both {
		_ = e.stop(t, time.Minute)
	}
}
