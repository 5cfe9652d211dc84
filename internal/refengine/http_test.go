package refengine

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serve starts an engine on loopback and returns it with its base URL.
func serve(t *testing.T, c Config) (*Engine, string) {
	t.Helper()
	e := newTestEngine(t, c)
	return e, serveOn(t, e)
}

func TestConformance(t *testing.T) {
	e, url := serve(t, Config{TP: 2})
	Conformance(t, url)
	allFree(t, e)
}

func TestConformanceOfARealEngine(t *testing.T) {
	url := os.Getenv("PDROUTER_ENGINE_URL")
	if url == "" {
		t.Skip("PDROUTER_ENGINE_URL is not set: no real engine to check")
	}
	Conformance(t, url)
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAnswerShapes(t *testing.T) {
	e, url := serve(t, Config{BlockTokens: 4, PrefixCache: true})
	text := string(detokenize(nil, naive(e.model, tokenize("hello world"), 4, 0, true)...))
	for _, c := range []struct{ name, path, body, want string }{
		{
			"completion", "/v1/completions", `{"prompt":"hello world","max_tokens":4,"ignore_eos":true,"return_token_ids":true}`,
			`{"id":"cmpl-ID","object":"text_completion","created":0,"model":"reference","choices":[{"index":0,"text":"TEXT","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":[256,104,101,108,108,111,32,119,111,114,108,100],"token_ids":IDS}],"usage":{"prompt_tokens":12,"total_tokens":16,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`,
		},
		{
			"the prompt's blocks are found", "/v1/completions", `{"prompt":"hello world","max_tokens":4,"ignore_eos":true,"echo":true}`,
			`{"id":"cmpl-ID","object":"text_completion","created":0,"model":"reference","choices":[{"index":0,"text":"hello worldTEXT","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":12,"total_tokens":16,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}`,
		},
		{
			"stream", "/v1/completions", `{"prompt":"hello world","max_tokens":1,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`,
			"data: " + `{"id":"cmpl-ID","object":"text_completion","created":0,"model":"reference","choices":[{"index":0,"text":"FIRST","logprobs":null,"finish_reason":"length","stop_reason":null}]}` + "\n\n" +
				"data: " + `{"id":"cmpl-ID","object":"text_completion","created":0,"model":"reference","choices":[],"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n" +
				"data: [DONE]\n\n",
		},
		{
			"unknown params", "/v1/completions", `{"prompt":"x","kv_transfer_params":{"remote_engine_id":"e"}}`,
			`{"error":{"message":"kv_transfer_params: json: unknown field \"remote_engine_id\"","type":"BadRequestError","param":"kv_transfer_params","code":400}}`,
		},
		{
			"no plane", "/v1/completions", `{"prompt":"x","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"0123456789abcdef0123456789abcdef","peer":{"engine":"d","generation":1},"valid_ms":1000}}`,
			`{"error":{"message":"refengine: leg not served: the engine has no plane","type":"BadRequestError","param":null,"code":400}}`,
		},
	} {
		ids, err := json.Marshal(naive(e.model, tokenize("hello world"), 4, 0, true))
		if err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("TEXT", text, "FIRST", text[:1], "IDS", string(ids)).Replace(c.want)
		req, err := http.NewRequest(http.MethodPost, url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Id", "ID")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(withoutTime(string(b)), want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", c.name, diff)
		}
	}
	allFree(t, e)
}

// withoutTime sets every "created" to 0.
func withoutTime(s string) string {
	const key = `"created":`
	var out strings.Builder
	for {
		i := strings.Index(s, key)
		if i < 0 {
			return out.String() + s
		}
		out.WriteString(s[:i] + key + "0")
		s = strings.TrimLeft(s[i+len(key):], "0123456789")
	}
}

func TestHandOffParamsRefused(t *testing.T) {
	whole := map[string]any{
		"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "0123456789abcdef0123456789abcdef",
		"peer": map[string]any{"engine": "d", "generation": 1}, "valid_ms": 1000,
	}
	parse := func(params map[string]any, more string) *apiError {
		b, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		_, api := parseCall(false, []byte(`{"prompt":"x"`+more+`,"kv_transfer_params":`+string(b)+`}`), Config{}.withDefaults())
		return api
	}
	if api := parse(whole, ""); api != nil {
		t.Fatalf("a whole set is refused: %v", api)
	}
	for key := range whole {
		part := map[string]any{}
		for k, v := range whole {
			if k != key {
				part[k] = v
			}
		}
		if api := parse(part, ""); api == nil || api.Status != http.StatusBadRequest {
			t.Errorf("without %s: %v; want 400", key, api)
		}
	}
	for _, more := range []string{`,"n":2`, `,"stream":true`} {
		if api := parse(whole, more); api == nil || api.Status != http.StatusBadRequest {
			t.Errorf("with %s: %v; want 400", more, api)
		}
	}
}

func TestClientLeaves(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"before the first token", `{"prompt":"a long prompt","max_tokens":2}`},
		{"streaming, before the first token", `{"prompt":"a long prompt","max_tokens":2,"stream":true}`},
		{"mid stream", `{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}`},
		{"waiting for the whole answer", `{"prompt":"x","max_tokens":1000,"ignore_eos":true}`},
		{"hanging", `{"prompt":"hang","max_tokens":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{DecodeCost: 20 * time.Millisecond, PrefillCost: 5 * time.Second}
			switch c.name {
			case "mid stream", "waiting for the whole answer":
				cfg.PrefillCost = 0
			case "hanging":
				cfg.Faults = []Fault{{Nth: -1, Do: Hang}}
			}
			e, url := serve(t, cfg)
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "+itoa(len(c.body))+"\r\n\r\n"+c.body); err != nil {
				t.Fatal(err)
			}
			if c.name == "mid stream" {
				if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
					t.Fatalf("status line %q, %v", line, err)
				}
			}
			eventually(t, func() bool { return e.Books().Free < e.Books().Blocks || c.name == "hanging" })
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { b := e.Books(); return b.Free == b.Blocks && b.Running == 0 })
		})
	}
}

func TestCutFault(t *testing.T) {
	_, url := serve(t, Config{Faults: []Fault{{Nth: -1, Do: Cut, After: 2}}})
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":5,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if n := strings.Count(string(b), "data: "); !errors.Is(err, io.ErrUnexpectedEOF) || n != 2 {
		t.Errorf("%d events, then %v; want 2, then a cut", n, err)
	}
	if _, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":5,"ignore_eos":true}`)); err == nil {
		t.Error("a whole answer was not cut")
	}
}

func TestKeptConnectionServesManyRequests(t *testing.T) {
	e, url := serve(t, Config{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	body := `{"prompt":"x","max_tokens":3}`
	one := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n" + body
	for _, batch := range []int{1, 3, 1, 2} { // pipelined requests come while an answer is computed
		if _, err := io.WriteString(conn, strings.Repeat(one, batch)); err != nil {
			t.Fatal(err)
		}
		for range batch {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("status %d, %v", resp.StatusCode, err)
			}
		}
	}
	allFree(t, e)
}

func TestMetrics(t *testing.T) {
	_, url := serve(t, Config{Blocks: 64})
	if status, b := post(t, url+"/v1/completions", `{"prompt":"hello","max_tokens":2,"ignore_eos":true}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, b)
	}
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`refengine_kv_blocks{state="total"} 64`, `refengine_kv_blocks{state="free"} 64`, `refengine_kv_blocks{state="held"} 0`,
		`refengine_prompt_tokens_by_source_total{source="local_compute"} 6`, `refengine_requests_finished_total{reason="length"} 1`,
		`refengine_requests{state="running"} 0`,
	} {
		if !strings.Contains(string(b), line+"\n") {
			t.Errorf("no line %q in\n%s", line, b)
		}
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// eventually waits for a condition that other processes or sockets bring about.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("did not come about in 20 s")
}
