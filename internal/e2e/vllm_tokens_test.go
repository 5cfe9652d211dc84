//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// chats are bodies whose prompt depends on more than the text of one message: several messages and roles, content in parts, tools and their
// results, and what the template is told.
func chats() (bodies []string) {
	r := rand.New(rand.NewPCG(48145, 1))
	words := strings.Fields("key lock \u00e9t\u00e9 \u4e16\u754c \U0001f511 <user> \\\" {{x}} </s> \\n\\n one")
	text := func() string {
		said := make([]string, 1+r.IntN(12))
		for i := range said {
			said[i] = words[r.IntN(len(words))]
		}
		return `"` + strings.Join(said, " ") + `"`
	}
	const tool = `{"type":"function","function":{"name":"find_%d","description":%s,"parameters":{"type":"object","properties":{"q":{"type":"string"}}}}}`
	for i := range 24 {
		var messages []string
		add := func(role, rest string) { messages = append(messages, fmt.Sprintf(`{"role":%q,%s}`, role, rest)) }
		if r.IntN(2) == 0 {
			add("system", `"content":`+text())
		}
		for range r.IntN(4) {
			add("user", `"content":[{"type":"text","text":`+text()+`},{"type":"text","text":`+text()+`}]`)
			if r.IntN(2) == 0 {
				add("assistant", `"content":`+text())
				continue
			}
			add("assistant", fmt.Sprintf(`"content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"find_0","arguments":"{\"q\": %d}"}}]`, i, i))
			add("tool", fmt.Sprintf(`"tool_call_id":"call_%d","content":%s`, i, text()))
		}
		add("user", `"content":`+text())
		more := ""
		for n := range r.IntN(3) {
			if n == 0 {
				more = `,"tools":[`
			} else {
				more += ","
			}
			more += fmt.Sprintf(tool, n, text())
		}
		if more != "" {
			more += `],"tool_choice":"none"`
		}
		if r.IntN(4) == 0 {
			more += `,"add_generation_prompt":false`
		}
		if r.IntN(4) == 0 {
			more += `,"chat_template_kwargs":{"mood":` + text() + `}`
		}
		if r.IntN(4) == 0 {
			more += `,"return_token_ids":true`
		}
		if r.IntN(2) == 0 {
			more += `,"stream":true,"stream_options":{"include_usage":true}`
		}
		bodies = append(bodies, fmt.Sprintf(`{"model":"tiny","messages":[%s],"max_tokens":12,"temperature":0%s}`, strings.Join(messages, ","), more))
	}
	return bodies
}

// another are the parts of an answer that differ between two engines that say the same: its id and time, and how the prompt was computed.
var another = regexp.MustCompile(`"(id|created|system_fingerprint)": ?("[^"]*"|\d+|null),?|,?"(kv_transfer_params|ec_transfer_params|prompt_tokens_details)": ?(null|\{[^{}]*\})`)

// answersTo asks every body, and returns the answers without those parts.
func answersTo(t *testing.T, url string, bodies []string) (answers []string) {
	t.Helper()
	for _, body := range bodies {
		a, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, %v: %s", body, a.StatusCode, err, b)
		}
		answers = append(answers, joined(t, another.ReplaceAllString(string(b), "")))
	}
	return answers
}

// joined joins the events of a stream that bring text: how many tokens are in one depends on how busy the engine is. It returns what is no
// stream as it is.
func joined(t *testing.T, answer string) string {
	t.Helper()
	if !strings.HasPrefix(answer, "data: ") {
		return answer
	}
	var text, ids, rest strings.Builder
	for _, event := range strings.Split(strings.TrimSpace(answer), "\n\n") {
		var e struct {
			Choices []struct {
				Delta  struct{ Content *string }
				Finish *string `json:"finish_reason"`
				IDs    []int   `json:"token_ids"`
			}
			Usage *struct {
				Prompt int `json:"prompt_tokens"`
				Answer int `json:"completion_tokens"`
			}
			Prompt []int `json:"prompt_token_ids"`
		}
		data := strings.Replace(strings.TrimPrefix(event, "data: "), ",}", "}", 1)
		if data == "[DONE]" {
			rest.WriteString(data)
			continue
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%s: %v", event, err)
		}
		for _, c := range e.Choices {
			if c.Delta.Content != nil {
				text.WriteString(*c.Delta.Content)
			}
			if c.Finish != nil {
				rest.WriteString(*c.Finish + " ")
			}
			for _, id := range c.IDs {
				fmt.Fprint(&ids, id, " ")
			}
		}
		if e.Prompt != nil {
			fmt.Fprint(&rest, e.Prompt, " ")
		}
		if e.Usage != nil {
			fmt.Fprint(&rest, *e.Usage, " ")
		}
	}
	return fmt.Sprintf("%q %s%s", text.String(), ids.String(), rest.String())
}

// forgetful passes requests on to an engine, but replaces the messages of a leg that has the prompt's token ids. What the engine says then
// shows that it has taken the ids in their place.
func forgetful(t *testing.T, of string) (address string, replaced *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	replaced = new(atomic.Int64)
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.FlushInterval = -1
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var body map[string]json.RawMessage
		var params map[string]json.RawMessage
		if json.Unmarshal(raw, &body) == nil && json.Unmarshal(body["kv_transfer_params"], &params) == nil && params["prompt_token_ids"] != nil {
			replaced.Add(1)
			body["messages"] = json.RawMessage(`[{"role":"user","content":"What was it that you asked?"}]`)
			raw, _ = json.Marshal(body)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
		r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, replaced
}

// tokens has a second gateway ask the pair, whose decode engine gets other messages with every hand-off that has token ids: each answer is one
// engine's all the same.
func (v *vllm) tokens(t *testing.T, way pair, prefill, decode engine, want []string) {
	address, replaced := forgetful(t, decode.url)
	is := decode.backend()
	is.url = address
	front := serve(t, v.gateway, config{connector: way.connector, prefill: []backend{prefill.backend()}, decode: []backend{is}})
	front.warm(t)
	bodies := chats()
	for i, got := range answersTo(t, front.url, bodies) {
		if got != want[i] {
			t.Errorf("%s\ngot  %s\nwant %s", bodies[i], got, want[i])
		}
	}
	forwarded, _ := scrape(t, front.operations).sum("pdrouter_prompt_token_ids_total", `result="forwarded"`)
	if n := replaced.Load(); int(n) != len(bodies) || int(forwarded) != len(bodies) {
		t.Errorf("%d of %d legs of decode had token ids; the gateway has counted %v", n, len(bodies), forwarded)
	}
	if err := front.stop(t, slow); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}
