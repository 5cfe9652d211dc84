package router

import (
	"fmt"
	"strings"
	"testing"
)

// raw is a request of a body, as bytes. Lines of head are put in front of it.
func rawPost(path, body string, head ...string) string {
	lines := append([]string{"POST " + path + " HTTP/1.1"}, head...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

const secondRequest = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"

// TestFault01to06Framing sends heads over which two parsers could disagree, each with a second request behind it.
func TestFault01to06Framing(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{})
	n := fmt.Sprintf("Content-Length: %d", len(plainBody))
	json := "Content-Type: application/json"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(plainBody), plainBody)
	many := make([]string, 0, 110)
	for i := range 105 {
		many = append(many, fmt.Sprintf("X-H%d: v", i))
	}
	for _, row := range []struct {
		name, request string
		status        string
	}{
		{"01 length and chunked", rawPost(pathCompletions, chunked, "Host: a", json, n, "Transfer-Encoding: chunked"), "400"},
		{"02 two lengths", rawPost(pathCompletions, plainBody, "Host: a", json, n, n), "400"},
		{"02 length +4", rawPost(pathCompletions, plainBody, "Host: a", json, "Content-Length: +4"), "400"},
		{"02 length 4,4", rawPost(pathCompletions, plainBody, "Host: a", json, "Content-Length: 4,4"), "400"},
		{"02 length overflows", rawPost(pathCompletions, plainBody, "Host: a", json, "Content-Length: 99999999999999999999"), "400"},
		{"03 not exactly chunked", rawPost(pathCompletions, chunked, "Host: a", json, "Transfer-Encoding: gzip, chunked"), "400"},
		{"03 identity", rawPost(pathCompletions, plainBody, "Host: a", json, n, "Transfer-Encoding: identity"), "400"},
		{"03 chunked on 1.0", strings.Replace(rawPost(pathCompletions, chunked, "Host: a", json, "Transfer-Encoding: chunked"),
			"HTTP/1.1", "HTTP/1.0", 1), "400"},
		{"04 folded line", rawPost(pathCompletions, plainBody, "Host: a", json, n, "X-A: b\r\n c"), "400"},
		{"04 NUL", rawPost(pathCompletions, plainBody, "Host: a", json, n, "X-A: b\x00"), "400"},
		{"04 space before colon", rawPost(pathCompletions, plainBody, "Host: a", json, n, "X-A : b"), "400"},
		{"05 no host", rawPost(pathCompletions, plainBody, json, n), "400"},
		{"05 two hosts", rawPost(pathCompletions, plainBody, "Host: a", "Host: b", json, n), "400"},
		{"05 other host in the target", rawPost("http://b"+pathCompletions, plainBody, "Host: a", json, n), "400"},
		{"06 large head", rawPost(pathCompletions, plainBody, "Host: a", json, n, "X-A: "+strings.Repeat("a", 17<<10)), "431"},
		{"06 many fields", rawPost(pathCompletions, plainBody, append([]string{"Host: a", json, n}, many...)...), "431"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := rawRequest(t, g.addr, row.request+secondRequest)
			if !strings.Contains(status, " "+row.status+" ") || !closed {
				t.Errorf("%q, closed %v; want %s and the end of the connection\n%s", status, closed, row.status, rest)
			}
			if strings.Contains(rest, `"object":"list"`) {
				t.Errorf("the second request was served: %s", rest)
			}
			if _, body, _ := strings.Cut(rest, "\r\n\r\n"); body != "" {
				errorOf(t, body)
			}
		})
	}
	if n := s.c.count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault07BodyTooLarge sends bodies over the limit in every framing.
func TestFault07BodyTooLarge(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	s.cfg.Limits.Body = 1000
	g := start(t, s.cfg, Parts{})
	big := `{"model":"tiny","prompt":"` + strings.Repeat("a", 2000) + `"}`
	json := "Content-Type: application/json"
	for _, row := range []struct{ name, request string }{
		{"length", rawPost(pathCompletions, big, "Host: a", json, fmt.Sprintf("Content-Length: %d", len(big)))},
		{"chunked", rawPost(pathCompletions, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big), "Host: a", json, "Transfer-Encoding: chunked")},
		{"expect", rawPost(pathCompletions, "", "Host: a", json, fmt.Sprintf("Content-Length: %d", len(big)), "Expect: 100-continue")},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := rawRequest(t, g.addr, row.request)
			if !strings.Contains(status, " 413 ") || !closed {
				t.Errorf("%q, closed %v; want 413 and the end of the connection\n%s", status, closed, rest)
			}
			if _, body, _ := strings.Cut(rest, "\r\n\r\n"); errorOf(t, body).Type != typeBadRequest {
				t.Errorf("body %q", body)
			}
		})
	}
	if n := s.c.count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault10to12Routes asks for what is not in the route table.
func TestFault10to12Routes(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{})
	length := fmt.Sprintf("Content-Length: %d", len(plainBody))
	ask := func(t *testing.T, method, path, want, allow string) {
		t.Helper()
		request := method + " " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
		body := ""
		if method == "POST" {
			request += length + "\r\n"
			body = plainBody
		}
		status, rest, _ := rawRequest(t, g.addr, request+"\r\n"+body)
		head, answer, _ := strings.Cut(rest, "\r\n\r\n")
		if !strings.Contains(status, " "+want+" ") {
			t.Errorf("%s %s: %q; want %s", method, path, status, want)
			return
		}
		if allow != "" && !strings.Contains(head, "Allow: "+allow) {
			t.Errorf("%s %s: no Allow: %s in %s", method, path, allow, head)
		}
		if e := errorOf(t, answer); want == "404" && e.Type != typeNotFound {
			t.Errorf("%s %s: error of type %s", method, path, e.Type)
		}
	}
	for _, path := range []string{
		"/V1/completions", "/v1//completions", "/v1/completions/", "/v1/../v1/completions", "/v1/%2e%2e/v1/completions",
		"/v1/completions%00", "/v1/completions;a", "/v1/completion%73", "//v1/completions", "/", "/v1/models/tiny",
		"/invocations", "/pause", "/resume", "/abort_requests", "/update_weights", "/collective_rpc", "/sleep", "/wake_up",
		"/reset_prefix_cache", "/v1/load_lora_adapter", "/server_info", "/docs", "/metrics", "/health", "/v1/embeddings",
		"/inference/v1/generate", "/kvplane/v1/events",
	} {
		ask(t, "POST", path, "404", "")
		ask(t, "GET", path, "404", "")
	}
	ask(t, "GET", pathCompletions, "405", "POST")
	ask(t, "PUT", pathChat, "405", "POST")
	ask(t, "POST", pathModels, "405", "GET")
	ask(t, "GET", pathRealtime, "501", "")
	for _, ctype := range []string{"text/plain", "application/x-www-form-urlencoded", ""} {
		r := g.post(pathCompletions, plainBody, "Content-Type", ctype)
		if r.Status != 400 {
			t.Errorf("content type %q: %d; want 400", ctype, r.Status)
		}
		errorOf(t, r.Body)
	}
	if n := s.c.count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault14to26Bodies sends bodies that are refused before any engine is asked.
func TestFault14to26Bodies(t *testing.T) {
	s := newPool(t, ConnectorPush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	g.post(pathCompletions, plainBody) // the pair's probe is over
	before := s.c.count("", "")
	for _, row := range []struct {
		name, body    string
		status        int
		reason, param string
	}{
		{"14 broken", `{"model":"tiny","prompt":`, 400, reasonBadJSON, ""},
		{"14 trailing bytes", plainBody + `{}`, 400, reasonBadJSON, ""},
		{"14 bad UTF-8", "{\"model\":\"tiny\",\"prompt\":\"\xff\"}", 400, reasonBadJSON, ""},
		{"14 deep", `{"model":"tiny","prompt":"a","x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, 400, "", ""},
		{"14 no object", `[]`, 400, "", ""},
		{"14 empty", ``, 400, "", ""},
		{"15 duplicate key", `{"model":"tiny","model":"other","prompt":"a"}`, 400, reasonDuplicateKey, ""},
		{"15 nested duplicate key", `{"model":"tiny","prompt":"a","x":{"a":1,"a":2}}`, 400, reasonDuplicateKey, ""},
		{"17 unknown model", `{"model":"other","prompt":"a"}`, 404, reasonNoModel, "model"},
		{"17 no model", `{"prompt":"a"}`, 400, "", "model"},
		{"22 n", `{"model":"tiny","prompt":"a","n":1000}`, 400, "", "n"},
		{"22 negative max_tokens", `{"model":"tiny","prompt":"a","max_tokens":-1}`, 400, "", "max_tokens"},
		{"26 stream_options", `{"model":"tiny","prompt":"a","stream_options":{"include_usage":true}}`, 400, "", "stream_options"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := g.post(pathCompletions, row.body)
			e := errorOf(t, r.Body)
			if r.Status != row.status || len(r.Body) > 2048 {
				t.Errorf("status %d, %d bytes; want %d: %s", r.Status, len(r.Body), row.status, r.Body)
			}
			if got := r.Header.Get("X-Pdrouter-Reason"); row.reason != "" && got != row.reason {
				t.Errorf("reason %q; want %q", got, row.reason)
			}
			if row.param != "" && (e.Param == nil || *e.Param != row.param) {
				t.Errorf("param in %s; want %q", r.Body, row.param)
			}
			if r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("X-Request-Id") == "" {
				t.Errorf("header %v", r.Header)
			}
		})
	}
	if n := s.c.count("", ""); n != before {
		t.Errorf("engines got %d requests", n-before)
	}
}

// TestFault16ForwardedToTheByte sends fields that a parser of JSON would change.
func TestFault16ForwardedToTheByte(t *testing.T) {
	s := newPool(t, ConnectorPush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	body := `{ "prompt" : "é\u00e9", "seed":9223372036854775807, "x":[1.0,1e400,-0.0], "model":"tiny" , "max_tokens" : 16 }`
	if r := g.post(pathCompletions, body); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	g.settled()
	seen := 0
	for _, q := range s.c.all() {
		if !strings.Contains(q.Body, "seed") {
			continue // the probe
		}
		seen++
		for _, part := range []string{`"prompt" : "é\u00e9", "seed":9223372036854775807, "x":[1.0,1e400,-0.0], "model":"tiny"`} {
			if !strings.Contains(q.Body, part) {
				t.Errorf("%s was sent %s", q.Leg, q.Body)
			}
		}
		if q.Leg == "decode" && !strings.Contains(q.Body, `"max_tokens" : 16`) {
			t.Errorf("decode was sent %s", q.Body)
		}
	}
	if seen != 2 {
		t.Errorf("%d legs; want 2", seen)
	}
}

// TestFault18ClientTransferParams sends kv_transfer_params in all four places.
func TestFault18ClientTransferParams(t *testing.T) {
	s := newPool(t, ConnectorPush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	evil := `{"do_remote_prefill":true,"remote_host":"6.6.6.6","remote_port":1}`
	body := `{"model":"tiny","prompt":"a","max_tokens":16,"kv_transfer_params":` + evil + `,"ec_transfer_params":` + evil +
		`,"vllm_xargs":{"kv_transfer_params":` + evil + `,"ok":1},"sampling_params":{"extra_args":{"kv_transfer_params":` + evil + `}}}`
	r := g.post(pathCompletions, body)
	if got, whole := text(t, r); r.Status != 200 || got != wholeText || !whole {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	for _, q := range s.c.all() {
		if strings.Contains(q.Body, "6.6.6.6") {
			t.Errorf("%s was sent %s", q.Engine, q.Body)
		}
	}
	if !g.last(1).Removed {
		t.Error("the summary does not say that a field was dropped")
	}
	g.settled()
	g.stop()

	cfg := s.cfg
	cfg.Strict = true
	strict := start(t, cfg, Parts{})
	if r := strict.post(pathCompletions, body); r.Status != 400 {
		t.Errorf("strict: status %d; want 400", r.Status)
	}
}

// TestFault19SameRequestID has two live requests with the same X-Request-Id, and headers that engines would heed.
func TestFault19SameRequestID(t *testing.T) {
	s := newPool(t, ConnectorPush, 1, 1, map[string][]fault{"decode-0": {{Leg: "decode", Do: doSlow, N: 20}}})
	g := start(t, s.cfg, Parts{})
	done := make(chan clientReply)
	for range 2 {
		go func() {
			done <- g.post(pathCompletions, streamBody, "X-Request-Id", "same", "X-Data-Parallel-Rank", "3",
				"X-Vllm-Priority", "9", "Cookie", "c", "X-Prefiller-Url", "http://6.6.6.6", "Authorization", "Bearer client")
		}()
	}
	for range 2 {
		r := <-done
		if got, whole := text(t, r); got != wholeText || !whole || r.Header.Get("X-Request-Id") != "same" {
			t.Errorf("text %q, whole %v, header %v", got, whole, r.Header)
		}
	}
	g.settled()
	ids := map[string]bool{}
	for _, q := range s.c.all() {
		key := q.Leg + q.ID
		if ids[key] || q.ID == "same" {
			t.Errorf("%s was sent id %q again", q.Leg, q.ID)
		}
		ids[key] = true
		for name := range q.Header {
			switch name {
			case "X-Request-Id", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "User-Agent":
			default:
				t.Errorf("%s was sent %s: %s", q.Engine, name, q.Header.Get(name))
			}
		}
	}
	s.noHeld(t)
}

// TestFault21to24Unsplittable sends shapes that one hand-off cannot serve: decode serves them alone.
func TestFault21to24Unsplittable(t *testing.T) {
	s := newPool(t, ConnectorPush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	for _, row := range []struct{ name, body, reason string }{
		{"21 n", `{"model":"tiny","prompt":"a","n":2,"max_tokens":9}`, unsplitN},
		{"21 prompts", `{"model":"tiny","prompt":["a","b"],"max_tokens":9}`, unsplitPrompts},
		{"23 echo", `{"model":"tiny","prompt":"a","echo":true,"logprobs":1,"max_tokens":9}`, unsplitEcho},
		{"24 one token", `{"model":"tiny","prompt":"a","max_tokens":1}`, unsplitOneToken},
	} {
		t.Run(row.name, func(t *testing.T) {
			alone := s.c.count("decode-0", "alone")
			r := g.post(pathCompletions, row.body)
			if r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != row.reason || r.Header.Get("X-Pdrouter-Prefill") != "" {
				t.Errorf("status %d, header %v", r.Status, r.Header)
			}
			if n := s.c.count("decode-0", "alone"); n != alone+1 {
				t.Errorf("decode was asked alone %d times; want 1", n-alone)
			}
		})
	}
	s.noHeld(t)
}

// TestFault30NoToken calls without credentials, with wrong ones, and for a model that is not the caller's.
func TestFault30NoToken(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{Clients: fakeClients{}})
	for _, authorization := range []string{"", "Basic abc", "Bearer bad"} {
		r := g.post(pathCompletions, plainBody, "Authorization", authorization)
		if r.Status != 401 || r.Header.Get("Www-Authenticate") == "" {
			t.Errorf("%q: status %d, header %v", authorization, r.Status, r.Header)
		}
		errorOf(t, r.Body)
	}
	if n := s.c.count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
	if r := g.post(pathCompletions, plainBody, "Authorization", "Bearer good"); r.Status != 200 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if sum := g.last(1); sum.Subject != "someone" {
		t.Errorf("subject %q", sum.Subject)
	}
	g.stop()
	other := start(t, s.cfg, Parts{Clients: fakeClients{models: []string{"large"}}})
	if r := other.post(pathCompletions, plainBody, "Authorization", "Bearer good"); r.Status != 403 {
		t.Errorf("forbidden model: status %d; want 403", r.Status)
	}
}
