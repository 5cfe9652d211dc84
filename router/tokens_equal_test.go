package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// stockLeg serves the legs of connector vllm-nixl-pull by an engine that hands nothing off: a prefill leg by the engine's answer of one token,
// to which it adds params, and a decode leg by the engine's answer to the prompt's token ids, or to the messages if it has none. The messages of
// a leg with ids are replaced, so that an answer from them is another.
func stockLeg(engine string, forwarded *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var body map[string]json.RawMessage
		var params map[string]json.RawMessage
		prefill := false
		if json.Unmarshal(raw, &body) == nil && json.Unmarshal(body["kv_transfer_params"], &params) == nil {
			prefill = string(params["do_remote_decode"]) == "true"
			delete(body, "kv_transfer_params")
			if ids := params["prompt_token_ids"]; ids != nil {
				forwarded.Add(1)
				body["kv_transfer_params"], _ = json.Marshal(map[string]json.RawMessage{"prompt_token_ids": ids})
				body["messages"] = json.RawMessage(`[{"role":"user","content":"something else"}]`)
			}
			var plain bytes.Buffer // as json.Marshal writes it, but with the texts as they are
			to := json.NewEncoder(&plain)
			to.SetEscapeHTML(false)
			_ = to.Encode(body)
			raw = plain.Bytes()
		}
		q, _ := http.NewRequestWithContext(r.Context(), r.Method, engine+r.URL.Path, bytes.NewReader(raw))
		q.Header = r.Header.Clone()
		a, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer a.Body.Close()
		answer, _ := io.ReadAll(a.Body)
		if prefill && a.StatusCode == http.StatusOK {
			answer = fmt.Appendf(bytes.TrimSuffix(answer, []byte("}")), `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"p",`+
				`"remote_host":"10.1.2.3","remote_port":5601,"tp_size":1,"remote_block_ids":[[1]],"remote_request_id":%q}}`, r.Header.Get("X-Request-Id"))
		}
		w.Header().Set("Content-Type", a.Header.Get("Content-Type"))
		w.WriteHeader(a.StatusCode)
		_, _ = w.Write(answer)
	}
}

// named are the parts of an answer that differ between two requests for the same.
var named = regexp.MustCompile(`"id":"[^"]*"|"created":\d+|"cached_tokens":\d+`)

// TestTokensEqual compares the answers to 1,000 chats, split with decode's leg from the prompt's token ids, with those of one engine, byte by
// byte: tools, calls, reasoning, content in parts, streams and the client's own wish for token ids.
func TestTokensEqual(t *testing.T) {
	engine := "http://" + refenginetest.Start(t, refengine.Config{Model: "tiny", MaxModelLen: 8192, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}})
	var forwarded atomic.Int64
	srv := httptest.NewServer(stockLeg(engine, &forwarded))
	defer srv.Close()
	g := routertest.Start(t, config.Config{Models: []config.Model{{
		Name: "tiny", Connector: connector.NamePull,
		Prefill: []config.Engine{{Name: "p", URL: srv.URL}}, Decode: []config.Engine{{Name: "d", URL: srv.URL}},
	}}}, router.Parts{})
	g.WaitWarm()

	rng := rand.New(rand.NewPCG(48145, 2))
	for i := range 1000 {
		body := someChat(rng)
		direct, err := http.Post(engine+routertest.PathChat, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(direct.Body)
		direct.Body.Close()
		r := g.Post(routertest.PathChat, body)
		want, got := named.ReplaceAllString(string(raw), ""), named.ReplaceAllString(r.Body, "")
		if r.Status != direct.StatusCode || got != want {
			t.Fatalf("%s\nstatus %d, %s\nwant   %d, %s", body, r.Status, got, direct.StatusCode, want)
		}
		if n := forwarded.Load(); r.Status == 200 && int(n) != i+1 {
			t.Fatalf("%d of %d decode legs had token ids", n, i+1)
		}
	}
}

// someChat is a body of a chat that every engine accepts.
func someChat(rng *rand.Rand) string {
	words := []string{"key", "lock", `\"`, "été", "世界", `\n\n`, "<|user|>", "</think>", "{{x}}", `\u00e9`, "a", "  "}
	text := func() string {
		said := make([]string, rng.IntN(8))
		for i := range said {
			said[i] = words[rng.IntN(len(words))]
		}
		return `"` + strings.Join(said, " ") + `"`
	}
	maybe := func(s string) string {
		if rng.IntN(2) == 0 {
			return ""
		}
		return s
	}
	turns := []string{}
	for range rng.IntN(4) {
		turns = append(turns, `{"role":"user","content":[{"type":"text","text":`+text()+`},{"type":"text","text":`+text()+`}]}`,
			`{"role":"assistant","content":`+text()+maybe(`,"reasoning":`+text())+maybe(`,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":`+text()+`}}]`)+`}`,
			`{"role":"tool","tool_call_id":"c","content":`+text()+`}`)
	}
	if len(turns) == 0 || rng.IntN(2) == 0 {
		turns = append(turns, `{ "role" : "user", "content":`+text()+`}`)
	}
	return `{"model":"tiny"` + maybe(`,"tools":[{"type":"function","function":{"name":"f","description":`+text()+`}}]`) + maybe(`,"return_token_ids":true`) +
		maybe(`,"stream":true,"stream_options":{"include_usage":true}`) + maybe(`,"cache_salt":"s"`) + maybe(`,"stop":["a"]`) +
		fmt.Sprintf(`,"max_tokens":%d,"messages":[%s]}`, 2+rng.IntN(5), strings.Join(turns, ","))
}
