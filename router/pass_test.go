package router

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// anyFleet is a model of aggregated engines.
func anyFleet(decode ...*fakeAny) config.Config {
	m := config.Model{Name: "tiny", Connector: connector.NameNone}
	for i, e := range decode {
		m.Engines = append(m.Engines, config.Engine{Name: fmt.Sprintf("decode-%d", i), URL: e.srv.URL})
	}
	return config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: 50 * time.Millisecond}}
}

// TestPassedRoutes asks for every route that is passed to one engine.
func TestPassedRoutes(t *testing.T) {
	e := newFakeAny(t, jsonAnswer(200, `{"object":"list","x":1.0,"usage":{"prompt_tokens":5,"completion_tokens":0},"kv_transfer_params":null}`))
	g := start(t, anyFleet(e), Parts{Clients: fakeClients{}})
	body := `{ "input":"é", "model":"tiny","seed":9223372036854775807,"request_id":"mine","stream":true,"kv_transfer_params":{"remote_host":"6.6.6.6"}}`
	n := 0
	for _, path := range PassedRoutes() {
		n++
		r := g.post(path, body, "Authorization", "Bearer good", "X-Request-Id", "same", "Cookie", "c", "X-Data-Parallel-Rank", "1")
		if r.Status != 200 || r.Body != `{"object":"list","x":1.0,"usage":{"prompt_tokens":5,"completion_tokens":0}}` {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
		if r.Header.Get("X-Request-Id") != "same" || r.Header.Get("X-Pdrouter-Decode") != "decode-0" {
			t.Errorf("%s: header %v", path, r.Header)
		}
		asked := e.all()
		if len(asked) != 1 || asked[0].Method != "POST" || asked[0].URI != path || asked[0].Body != `{ "input":"é", "model":"tiny","seed":9223372036854775807,"stream":true}` {
			t.Errorf("%s: the engine was asked %+v", path, asked)
			continue
		}
		if h := asked[0].Header; h.Get("X-Request-Id") == "same" || h.Get("X-Request-Id") == "" || h.Get("Cookie")+h.Get("Authorization")+h.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("%s: the engine was told %v", path, h)
		}
		if s := g.last(n); s.Route != path || s.Decode != "decode-0" || s.Outcome != report.Completed || s.PromptTokens != 5 || !s.Removed || s.Subject != "someone" {
			t.Errorf("%s: summary %+v", path, s)
		}
		if r := g.post(path, body); r.Status != 401 {
			t.Errorf("%s: status %d without credentials", path, r.Status)
		}
		if r := g.post(path, `{"model":"other"}`, "Authorization", "Bearer good"); r.Status != 404 {
			t.Errorf("%s: status %d for a model that is not served", path, r.Status)
		}
	}
	if n != 21 {
		t.Errorf("%d routes; want 21", n)
	}
	if asked := e.all(); len(asked) != 0 {
		t.Errorf("the engine was asked %+v", asked)
	}
}

// TestPassedAnswers has an engine answer in ways that no generation has: they are the client's as they are.
func TestPassedAnswers(t *testing.T) {
	for _, row := range []struct {
		name, ctype, body string
		status            int
	}{
		{"list", "application/json", `[{"a":1},{"kv":2}]`, 200},
		{"error within", "application/json", `{"status":"failed","error":{"code":"server_error","message":"x"}}`, 200},
		{"bytes", "application/octet-stream", "\x00\xff_transfer_params", 200},
		{"subtitles", "text/plain; charset=utf-8", "1\n00:00\nhello", 200},
		{"no such route", "application/json", `{"detail":"Not Found"}`, 404},
		{"not supported", "application/json", `{"error":{"message":"no","type":"NotImplementedError","param":null,"code":501}}`, 501},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := newFakeAny(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", row.ctype)
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.body)
			})
			g := start(t, anyFleet(e, e), Parts{})
			r := g.post("/pooling", `{"model":"tiny"}`)
			if r.Status != row.status || r.Body != row.body || r.Header.Get("Content-Type") != row.ctype {
				t.Errorf("status %d, %s, %q", r.Status, r.Header.Get("Content-Type"), r.Body)
			}
			if got := r.Header.Get("X-Should-Retry"); (got == "false") != (row.status >= 400) {
				t.Errorf("X-Should-Retry %q", got)
			}
			if n := len(e.all()); n != 1 {
				t.Errorf("asked %d times; want 1", n)
			}
			why := map[bool]string{true: "aggregated", false: "engine_rejected"}[row.status == 200]
			if s := g.last(1); s.Outcome != report.Completed || s.Status != row.status || s.Reason != why || r.Header.Get("X-Pdrouter-Reason") != why {
				t.Errorf("%s, status %d, reason %s, to the client %s; want completed and %s", s.Outcome, s.Status, s.Reason, r.Header.Get("X-Pdrouter-Reason"), why)
			}
		})
	}
}

// TestPassedMetadata has an engine say beside an answer of bytes what they are: that field alone is the client's too.
func TestPassedMetadata(t *testing.T) {
	say := `{"data":[{"index":0,"shape":[2]}]}`
	e := newFakeAny(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("metadata", say)
		w.Header().Set("X-Inside", "10.0.0.7")
		_, _ = io.WriteString(w, "\x00\x01")
	})
	g := start(t, anyFleet(e), Parts{})
	if r := g.post("/pooling", `{"model":"tiny","encoding_format":"bytes"}`); r.Body != "\x00\x01" || r.Header.Get("Metadata") != say || r.Header.Get("X-Inside") != "" {
		t.Errorf("status %d, %q, %v", r.Status, r.Body, r.Header)
	}
	say = `{"kv_transfer_params":{}}`
	if r := g.post("/pooling", `{"model":"tiny"}`); r.Header.Get("Metadata") != "" {
		t.Errorf("header %v", r.Header)
	}
}

// TestPassedRetries has the first engine fail before it has answered: another one is asked.
func TestPassedRetries(t *testing.T) {
	bad := newFakeAny(t, func(w http.ResponseWriter, _ *http.Request, _ string) { resetConn(w) })
	good := newFakeAny(t, jsonAnswer(200, `{"tokens":[1]}`))
	g := start(t, anyFleet(bad, good), Parts{Planner: firstUsable{}})
	if r := g.post("/tokenize", `{"model":"tiny","prompt":"a"}`); r.Status != 200 || r.Body != `{"tokens":[1]}` {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if s := g.last(1); s.Attempts != 2 || s.Decode != "decode-1" {
		t.Errorf("summary %+v", s)
	}
	if len(bad.all()) == 0 {
		t.Error("the first engine was not asked")
	}
}
