package router_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// anyFleet is a model of aggregated engines.
func anyFleet(decode ...*routertest.AnyEngine) config.Config {
	m := config.Model{Name: "tiny", Connector: connector.NameNone}
	for i, e := range decode {
		m.Engines = append(m.Engines, config.Engine{Name: fmt.Sprintf("decode-%d", i), URL: e.Server.URL})
	}
	return config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: 50 * time.Millisecond}}
}

// TestPassedRoutes asks for every route that is passed to one engine.
func TestPassedRoutes(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"object":"list","x":1.0,"usage":{"prompt_tokens":5,"completion_tokens":0},"kv_transfer_params":null}`))
	g := routertest.Start(t, anyFleet(e), router.Parts{Clients: routertest.Clients{}})
	body := `{ "input":"é", "model":"tiny","seed":9223372036854775807,"request_id":"mine","stream":true,"kv_transfer_params":{"remote_host":"6.6.6.6"}}`
	n := 0
	for _, path := range router.PassedRoutes() {
		n++
		r := g.Post(path, body, "Authorization", "Bearer good", "X-Request-Id", "same", "Cookie", "c", "X-Data-Parallel-Rank", "1")
		if r.Status != 200 || r.Body != `{"object":"list","x":1.0,"usage":{"prompt_tokens":5,"completion_tokens":0}}` {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
		if r.Header.Get("X-Request-Id") != "same" || r.Header.Get("X-Pdrouter-Decode") != "decode-0" {
			t.Errorf("%s: header %v", path, r.Header)
		}
		asked := e.All()
		if len(asked) != 1 || asked[0].Method != "POST" || asked[0].URI != path || asked[0].Body != `{ "input":"é", "model":"tiny","seed":9223372036854775807,"stream":true}` {
			t.Errorf("%s: the engine was asked %+v", path, asked)
			continue
		}
		if h := asked[0].Header; h.Get("X-Request-Id") == "same" || h.Get("X-Request-Id") == "" || h.Get("Cookie")+h.Get("Authorization")+h.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("%s: the engine was told %v", path, h)
		}
		if s := g.Summary(n); s.Route != path || s.Decode != "decode-0" || s.Outcome != report.Completed || s.PromptTokens != 5 || !s.Removed || s.Subject != "someone" {
			t.Errorf("%s: summary %+v", path, s)
		}
		if r := g.Post(path, body); r.Status != 401 {
			t.Errorf("%s: status %d without credentials", path, r.Status)
		}
		if r := g.Post(path, `{"model":"other"}`, "Authorization", "Bearer good"); r.Status != 404 {
			t.Errorf("%s: status %d for a model that is not served", path, r.Status)
		}
	}
	if n != 21 {
		t.Errorf("%d routes; want 21", n)
	}
	if asked := e.All(); len(asked) != 0 {
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
			e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", row.ctype)
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.body)
			})
			g := routertest.Start(t, anyFleet(e, e), router.Parts{})
			r := g.Post("/pooling", `{"model":"tiny"}`)
			if r.Status != row.status || r.Body != row.body || r.Header.Get("Content-Type") != row.ctype {
				t.Errorf("status %d, %s, %q", r.Status, r.Header.Get("Content-Type"), r.Body)
			}
			if got := r.Header.Get("X-Should-Retry"); (got == "false") != (row.status >= 400) {
				t.Errorf("X-Should-Retry %q", got)
			}
			if n := len(e.All()); n != 1 {
				t.Errorf("asked %d times; want 1", n)
			}
			why := map[bool]string{true: "aggregated", false: "engine_rejected"}[row.status == 200]
			if s := g.Summary(1); s.Outcome != report.Completed || s.Status != row.status || s.Reason != why || r.Header.Get("X-Pdrouter-Reason") != why {
				t.Errorf("%s, status %d, reason %s, to the client %s; want completed and %s", s.Outcome, s.Status, s.Reason, r.Header.Get("X-Pdrouter-Reason"), why)
			}
		})
	}
}

// TestPassedMetadata has an engine say beside an answer of bytes what they are: that field alone is the client's too.
func TestPassedMetadata(t *testing.T) {
	say := `{"data":[{"index":0,"shape":[2]}]}`
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("metadata", say)
		w.Header().Set("X-Inside", "10.0.0.7")
		_, _ = io.WriteString(w, "\x00\x01")
	})
	g := routertest.Start(t, anyFleet(e), router.Parts{})
	if r := g.Post("/pooling", `{"model":"tiny","encoding_format":"bytes"}`); r.Body != "\x00\x01" || r.Header.Get("Metadata") != say || r.Header.Get("X-Inside") != "" {
		t.Errorf("status %d, %q, %v", r.Status, r.Body, r.Header)
	}
	say = `{"kv_transfer_params":{}}`
	if r := g.Post("/pooling", `{"model":"tiny"}`); r.Header.Get("Metadata") != "" {
		t.Errorf("header %v", r.Header)
	}
}

// TestPassedRetries has the first engine fail before it has answered: another one is asked.
func TestPassedRetries(t *testing.T) {
	bad := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) { routertest.ResetConn(w) })
	good := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"tokens":[1]}`))
	g := routertest.Start(t, anyFleet(bad, good), router.Parts{Planner: routertest.FirstUsable{}})
	if r := g.Post("/tokenize", `{"model":"tiny","prompt":"a"}`); r.Status != 200 || r.Body != `{"tokens":[1]}` {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if s := g.Summary(1); s.Attempts != 2 || s.Decode != "decode-1" {
		t.Errorf("summary %+v", s)
	}
	if len(bad.All()) == 0 {
		t.Error("the first engine was not asked")
	}
}
