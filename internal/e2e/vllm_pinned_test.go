//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestStockVLLMPinned has decode run with bidirectional_kv_xfer: it pins the blocks of each answer for eight minutes, for the prefill engine of a
// next turn. The gateway finds that out by the handshake, and tells decode that they were read: of whole answers, of streams, of streams that end
// by a stop string, for which nothing is pinned, and of those that a client leaves. No block stays, and no engine ends.
func TestStockVLLMPinned(t *testing.T) {
	v := prepare(t, "full")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var p, d engine
	var g gateway
	v.step(t, "start prefill and decode", func() {
		pins := strings.TrimSuffix(way.transfer("kv_consumer"), "}") + `,"kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`
		p = v.engine(t, role{name: "prefill", cpu: 0, transfer: way.transfer("kv_producer")}, nil)
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
	for _, e := range []engine{p, d} {
		_ = e.stop(t, time.Minute)
	}
}
