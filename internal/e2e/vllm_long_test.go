//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestVLLMLongPrompts asks one pair through two gateways in turns. With the first, decode gets prefill's token ids; with the second it tokenises chats
// itself. It prints how long decode takes to its first token at 30,000 tokens. Prefill has all but the end of each prompt cached, decode nothing.
// CI does not run it, as it measures: make e2e-vllm-long.
func TestVLLMLongPrompts(t *testing.T) {
	v := prepare(t, "long")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var prefill, decode engine
	v.step(t, "start two instances", func() {
		prefill = v.engine(t, role{name: "prefill", transfer: way.transfer("kv_producer"), context: 32768}, nil)
		decode = v.engine(t, role{name: "decode", cpu: 1, transfer: way.transfer("kv_consumer"), context: 32768, forgets: true}, nil)
		prefill.up(t)
		decode.up(t)
	})
	var fronts [2]gateway
	v.step(t, "start two gateways", func() {
		for i := range fronts {
			fronts[i] = serve(t, v.gateway, config{connector: way.connector, retokenize: i == 1, prefill: []backend{prefill.backend()}, decode: []backend{decode.backend()}})
			fronts[i].warm(t)
		}
	})
	rng := rand.New(rand.NewPCG(30, 1))
	var text strings.Builder
	for text.Len() < 29_900 {
		fmt.Fprintf(&text, "%c%c%c%c ", 'a'+rng.IntN(26), 'a'+rng.IntN(26), 'a'+rng.IntN(26), 'a'+rng.IntN(26))
	}
	const rounds = 10
	var took [2][]float64 // milliseconds
	v.step(t, "long chats in turns", func() {
		for n := range 1 + rounds { // the first fills prefill's cache
			for i, g := range fronts {
				until(t, slow, "decode has forgotten its prefixes", func() bool { return decode.forget(t) && unused(t, decode) })
				body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"%s%d %d"}],"temperature":0,"max_tokens":4,"stream":true}`, text.String(), n, i)
				told(t, g.url+"/v1/chat/completions", body)
				if last := g.requests(t)[0]; n > 0 {
					took[i] = append(took[i], 1000*(last.Stages["transfer"]+last.Stages["first_token"]))
				}
			}
		}
	})
	for i := range took {
		slices.Sort(took[i])
	}
	once, again := took[0][rounds/2], took[1][rounds/2]
	t.Logf("from prefill's answer to decode's first token at 30,000 tokens, in ms: %.0f with prefill's token ids, %.0f with messages, %.0f %% less (%.0f and %.0f)", once, again, 100*(1-once/again), took[0], took[1])
	forwarded, _ := scrape(t, fronts[0].operations).sum("pdrouter_prompt_token_ids_total", `result="forwarded"`)
	if forwarded < rounds || once >= again {
		t.Errorf("%v requests had prefill's token ids", forwarded)
	}
}
