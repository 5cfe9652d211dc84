//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"
)

// goesOn has a gateway serve the first turns of conversations with two engines, and another one, which is started then, the next turns: it sends
// each to the engine that has it, and the engines count as many cached tokens as it has predicted. Prompts are token ids, as a gateway that starts
// has learned those of no chat.
func (v *vllm) goesOn(t *testing.T, first engine, events []string) {
	moreEvents := freeAddresses(t, 2)
	second := v.engine(t, role{name: "second", cpu: 1, events: moreEvents}, nil)
	second.up(t)
	is := config{connector: "none", engines: []backend{{url: first.url, events: events}, {url: second.url, events: moreEvents}}, more: "policy: {default: {decode: prefix}}\n"}
	start := func() gateway {
		g := serve(t, v.gateway, is)
		until(t, slow, "both engines are followed", func() bool { return g.counter(t, "pdrouter_kv_events_live") == 2 })
		return g
	}
	before := start()
	const conversations = 8
	var prompts [conversations][]uint32
	var with [conversations]string
	served := map[string]int{}
	for i := range prompts {
		for k := range 100 {
			prompts[i] = append(prompts[i], uint32(100+(37*i+k)%200))
		}
		prompts[i], with[i] = before.completes(t, prompts[i])
		served[with[i]]++
	}
	if len(served) != 2 {
		t.Errorf("conversations are with %v; want both engines", served)
	}
	if err := before.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	after := start()
	for i := range prompts {
		prompt, at := after.completes(t, append(prompts[i], 101, 102, 103))
		if at != with[i] {
			t.Errorf("conversation %d goes on at %s; want %s", i, at, with[i])
		}
		prompts[i] = prompt
	}
	predicted, _ := scrape(t, after.operations).sum("pdrouter_predicted_cached_tokens_total", `by="events"`)
	counted, _ := scrape(t, after.operations).sum("pdrouter_counted_cached_tokens_total", `by="events"`)
	wrong, _ := scrape(t, after.operations).sum("pdrouter_mispredicted_cached_tokens_total", `by="events"`)
	t.Logf("%v cached tokens predicted, %v counted, an error of %v", predicted, counted, wrong)
	if counted < conversations*2*blockTokens || wrong > counted/100 {
		t.Errorf("%v cached tokens predicted, %v counted, an error of %v; want at most 1 in 100", predicted, counted, wrong)
	}
	if err := after.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	_ = second.stop(t, time.Minute)
}

// completes sends a prompt of token ids, of a session if there is one. It returns the prompt with its answer, and which engine has served it.
func (g gateway) completes(t *testing.T, prompt []uint32, session ...string) (whole []uint32, engine string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true, "return_token_ids": true})
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	for _, name := range session {
		q.Header.Set("X-Session-Id", name)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	said, err := io.ReadAll(a.Body)
	var out struct {
		Choices []struct {
			IDs []uint32 `json:"token_ids"`
		}
	}
	if err == nil {
		err = json.Unmarshal(said, &out)
	}
	if err != nil || a.StatusCode != http.StatusOK || len(out.Choices) != 1 || len(out.Choices[0].IDs) != 20 {
		t.Fatalf("status %d, %v: %s", a.StatusCode, err, said)
	}
	return append(prompt[:len(prompt):len(prompt)], out.Choices[0].IDs...), a.Header.Get("X-Pdrouter-Decode")
}
