//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStockVLLMPinned has decode run with bidirectional_kv_xfer: it pins the blocks of each answer for eight minutes, for the prefill engine of a
// next turn. The gateway finds that out by the handshake, and tells decode that they were read: of whole answers, of streams, of streams that end
// by a stop string, for which nothing is pinned, and of those that a client leaves. No block stays, and no engine ends. Then a second gateway with
// migration.pinned_for has a move read what is pinned.
func TestStockVLLMPinned(t *testing.T) {
	v := prepare(t, "full")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var p, d engine
	var g gateway
	v.step(t, "start prefill and decode", func() {
		pins := strings.TrimSuffix(way.transfer("kv_both"), "}") + `,"kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`
		p = v.engine(t, role{name: "prefill", cpu: 0, transfer: pins}, nil)
		d = v.engine(t, role{name: "decode", cpu: 1, transfer: pins}, nil)
		p.up(t)
		d.up(t)
	})
	v.step(t, "start the gateway", func() {
		g = serve(t, v.gateway, config{connector: way.connector, prefill: []backend{p.backend()}, decode: []backend{d.backend()}})
		until(t, slow, "decode has shown that it pins", func() bool {
			n, _ := scrape(t, g.operations).sum("pdrouter_engine_pins_kv")
			return n == 1
		})
	})
	v.step(t, "answers", func() {
		g.warm(t)
		for i := range 9 {
			stop := ""
			if i%3 == 2 {
				stop = `,"stop":["e","a","1"],"ignore_eos":true`
			}
			body := fmt.Sprintf(`{"model":"tiny","prompt":"%d %s","max_tokens":40,"temperature":1,"stream":%v%s}`, i, strings.Repeat("it is long enough ", 30), i%3 > 0, stop)
			a, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if i != 4 { // else its client leaves
				_, err = io.Copy(io.Discard, a.Body)
			}
			if a.Body.Close(); err != nil || a.StatusCode != http.StatusOK {
				t.Fatalf("status %d, %v", a.StatusCode, err)
			}
		}
	})
	v.step(t, "nothing stays pinned", func() {
		until(t, slow, "no engine holds a block", func() bool { return unused(t, p) && unused(t, d) })
		if n := must(t, scrape(t, d.url), "vllm:nixl_num_kv_expired_reqs_total"); n != 0 {
			t.Errorf("decode freed %v answers by its own time; want none", n)
		}
		freed, _ := scrape(t, g.operations).sum("pdrouter_reclaims_total", `ending="answered"`)
		t.Logf("decode was told of %v answers", freed)
		if freed < 6 {
			t.Errorf("decode was told of %v answers; want 6 at least", freed)
		}
	})
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	v.readsPinned(t, way, []engine{p, d})
	for _, e := range []engine{p, d} {
		_ = e.stop(t, time.Minute)
	}
}

// readsPinned has split requests answered by two engines that pin, and one of them drained: its moves read what it pins, without a request to it, and the
// next turns are right.
func (v *vllm) readsPinned(t *testing.T, way pair, both []engine) {
	is := config{connector: way.connector, engines: []backend{both[0].backend(), both[1].backend()},
		more: "policy: {default: {split: {min_prompt_tokens: 1}, decode: session}}\nmigration: {mode: enabled, min_tokens: 64, pinned_for: 5m}\n"}
	var g gateway
	pinned := func(name string) float64 {
		n, _ := scrape(t, g.operations).sum("pdrouter_pinned_answers_total", `result="`+name+`"`)
		return n
	}
	v.step(t, "a gateway whose moves read what is pinned", func() {
		g = serve(t, v.gateway, is)
		until(t, slow, "it is known that both pin, and how large their caches are", func() bool {
			n, _ := scrape(t, g.operations).sum("pdrouter_engine_pins_kv")
			for _, e := range []string{"engines-0", "engines-1"} {
				if tokens, ok := scrape(t, g.operations).sum("pdrouter_engine_prefix_cache_tokens", `engine="`+e+`"`); !ok || tokens == 0 {
					return false
				}
			}
			return n == 2
		})
	})
	conversations := map[string][][]uint32{} // prompts with their answers, by the engine that pins them
	v.step(t, "first turns", func() {
		for i := range 6 {
			prompt := make([]uint32, 340+blockTokens*i) // with an answer of 20 tokens they have a whole block more
			for k := range prompt {
				prompt[k] = uint32(110 + (29*i+13*k+k*k)%190)
			}
			whole, at := g.completes(t, prompt, fmt.Sprintf("pinned %d", i))
			conversations[at] = append(conversations[at], whole)
		}
	})
	from, to := 0, 1
	if len(conversations["engines-1"]) > len(conversations["engines-0"]) {
		from, to = 1, 0
	}
	gone := conversations[fmt.Sprintf("engines-%d", from)]
	if n, _ := scrape(t, g.operations).sum("pdrouter_pinned_kv_blocks", fmt.Sprintf(`engine="engines-%d"`, from)); n < float64(11*len(gone)) {
		t.Errorf("%v blocks are pinned for %d answers", n, len(gone))
	}
	asked, read := must(t, scrape(t, both[from].url), "vllm:prompt_tokens_total"), must(t, scrape(t, both[to].url), "vllm:external_prefix_cache_hits_total")
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
	if n := pinned("read"); n != float64(len(gone)) {
		t.Errorf("moves have read %v of %d answers that were pinned", n, len(gone))
	}
	if n := must(t, scrape(t, both[from].url), "vllm:prompt_tokens_total"); n != asked {
		t.Errorf("the engine that drains was asked for %v tokens", n-asked)
	}
	if n := must(t, scrape(t, both[to].url), "vllm:external_prefix_cache_hits_total"); n < read+float64(blockTokens*len(gone)) {
		t.Errorf("%v tokens were read for %d moves", n-read, len(gone))
	}
	v.step(t, "next turns", func() {
		for i, whole := range gone {
			next := append(slices.Clone(whole), 120, 127, 134, 141, 148)
			got, at := g.completes(t, next, fmt.Sprintf("pinned next %d", i))
			want, _ := gateway{url: both[from].url}.completes(t, next) // as it still has its own cache
			if at != fmt.Sprintf("engines-%d", to) || !slices.Equal(got, want) {
				t.Errorf("conversation %d: at %s %v, want %v", i, at, got[len(next):], want[len(next):])
			}
		}
	})
	t.Logf("%d moves have read what was pinned; replaced %v, expired %v", len(gone), pinned("replaced"), pinned("expired"))
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	until(t, slow, "the gateway that stops leaves nothing pinned", func() bool { return unused(t, both[0]) && unused(t, both[1]) })
}
