//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/talktest"
)

// TestVLLMConversations has conversations go on while each of two engines of stock vLLM drains in turn, so that their KV moves to the other one
// and back, by pull and by push. Each answer is compared with that of an engine that computes all of it. CONVERSATIONS says how many there are each
// way. CI has no time for it: make e2e-vllm-long.
func TestVLLMConversations(t *testing.T) {
	conversations := 150
	if n, err := strconv.Atoi(os.Getenv("CONVERSATIONS")); err == nil {
		conversations = n
	}
	v := prepare(t, "full")
	for _, way := range []pair{{connector: "vllm-nixl-pull", class: "NixlConnector"}, {connector: "vllm-nixl-push", class: "NixlPushConnector"}} {
		t.Run(way.connector, func(t *testing.T) { v.converse(t, way, conversations) })
	}
}

func (v *vllm) converse(t *testing.T, way pair, conversations int) {
	var both [2]engine
	is := config{connector: way.connector, more: "policy: {default: {split: {min_prompt_tokens: 100000}, decode: session}}\nmigration: {mode: enabled, min_tokens: 32, max_idle: 30s}\n"}
	v.step(t, "start the instances", func() {
		for i := range both {
			both[i] = v.engine(t, role{name: fmt.Sprintf("engine-%d", i), cpu: i, transfer: way.transfer("kv_both")}, nil)
		}
		if way.connector == "vllm-nixl-push" { // it has no engines of either role
			idle := v.engine(t, role{name: "prefill", transfer: way.transfer("kv_producer")}, nil)
			idle.up(t)
			is.prefill = []backend{idle.backend()}
		}
		for _, e := range both {
			e.up(t)
		}
	})
	list := []backend{both[0].backend(), both[1].backend()}
	if is.prefill == nil {
		is.engines = list
	} else {
		is.decode = list
	}
	g := serve(t, v.gateway, is)
	drain := func(nth int) {
		for i := range list {
			list[i].drain = i == nth
		}
		g.write(t, is)
		a, err := http.Post(g.operations+"/config/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(a.Body)
		if a.Body.Close(); a.StatusCode != http.StatusOK {
			t.Fatalf("reload: status %d: %s", a.StatusCode, said)
		}
		until(t, 2*slow, "no move is left", func() bool {
			return g.counter(t, "pdrouter_migrations_waiting") == 0 && g.counter(t, "pdrouter_migrations_running") == 0
		})
	}
	rng := rand.New(rand.NewPCG(23, uint64(conversations)))
	walk, turns := talktest.Walk{Rand: rng, Talks: conversations, Open: 12, Prompts: true}, 0
	v.step(t, fmt.Sprint(conversations, " conversations"), func() {
		for c := walk.Next(); c != nil; c = walk.Next() {
			got := g.answer(t, c, c.Salt, rng.IntN(2) == 0)
			alone := gateway{url: both[turns%2].url}
			if want := alone.answer(t, c, fmt.Sprint("alone ", turns), false); got != want { // a salt of its own: everything is computed
				t.Fatalf("turn %d: %q; computed anew: %q\n%+v", turns, got, want, c)
			}
			c.Answered(got)
			if turns++; turns%15 == 14 {
				drain(turns / 15 % 2)
			}
		}
	})
	results := map[string]float64{}
	for _, r := range []string{"moved", "failed", "late", "refused", "no_hand_off"} {
		results[r], _ = scrape(t, g.operations).sum("pdrouter_migrations_total", `result="`+r+`"`)
	}
	t.Logf("%s: %d conversations, %d turns, moves: %v", way.connector, conversations, turns, results)
	if results["moved"] < float64(conversations)/4 || results["failed"]+results["late"]+results["refused"]+results["no_hand_off"] > 0 {
		t.Errorf("moves: %v", results)
	}
	until(t, slow, "no engine holds a block", func() bool { return unused(t, both[0]) && unused(t, both[1]) })
	if err := g.stop(t, time.Minute); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
	for _, e := range both {
		_ = e.stop(t, time.Minute)
	}
}

// answer asks for a short answer, whole or streamed, and returns its text.
func (g gateway) answer(t *testing.T, c *talktest.Talk, salt string, stream bool) (text string) {
	t.Helper()
	path, ask := "/v1/chat/completions", map[string]any{"model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": true, "stream": stream}
	if salt != "" {
		ask["cache_salt"] = salt
	}
	if c.Messages == nil {
		path, ask["prompt"] = "/v1/completions", c.Prompt
	} else {
		ask["messages"] = c.Messages
	}
	body, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", c.Name)
	a, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", body, a.StatusCode, err, b)
	}
	for line := range strings.Lines(string(b)) {
		var e struct {
			Choices []struct {
				Text           string
				Delta, Message struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e) == nil && len(e.Choices) > 0 {
			text += e.Choices[0].Text + e.Choices[0].Delta.Content + e.Choices[0].Message.Content
		}
	}
	return text
}
