package router_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// explain asks what a request would get.
func explain(t *testing.T, g *routertest.Gateway, path, body string, header ...string) (int, fleet.Explanation, string) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest("POST", path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	g.Router.Operations().ServeHTTP(w, r)
	var e fleet.Explanation
	if w.Code == 200 {
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
	}
	return w.Code, e, w.Body.String()
}

// TestExplain: what is explained is what the next request gets, nothing is sent for it, and what cannot be explained is said.
func TestExplain(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {prefill: prefix, decode: session}"))
	if err != nil {
		t.Fatal(err)
	}
	routertest.RunVirtual(t, connector.NamePull, func(t *testing.T) {
		s := routertest.NewPool(t, connector.NamePull, 3, 3, nil)
		g := routertest.Start(t, s.Config, router.Parts{Planner: p})
		g.WaitWarm()
		explain := func(path, body string, header ...string) (int, fleet.Explanation, string) {
			t.Helper()
			return explain(t, g, path, body, header...)
		}
		body := chat(t, "a conversation")
		first := g.Prefixed(1, body)
		g.WaitIdle()
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			code, e, text := explain("/explain/v1/chat/completions", body, "X-Session-Id", id)
			if code != 200 || !e.Split || e.Prefill != first || !e.Session || e.PromptTokens < 200 || len(e.Stages) != 2 || len(e.Stages[0].Engines) != 3 {
				t.Fatalf("status %d: %s", code, text)
			}
			for _, x := range e.Stages[0].Engines {
				if x.Taken != (x.Engine == first) || (x.Cached > 0) != x.Taken || x.State == "" {
					t.Errorf("%+v", x)
				}
			}
			if r := g.Post("/v1/chat/completions", chat(t, "another"), "X-Session-Id", id); r.Header.Get("X-Pdrouter-Decode") != e.Decode {
				t.Errorf("session %s: explained %s, served by %s", id, e.Decode, r.Header.Get("X-Pdrouter-Decode"))
			}
			g.WaitIdle()
		}
		if code, e, text := explain("/explain/v1/completions", `{"model":"tiny","prompt":"a","echo":true}`); code != 200 || e.Split || e.Reason != "echo" || len(e.Stages) != 1 {
			t.Errorf("status %d: %s", code, text)
		}
		several := strings.Replace(body, "{", `{"n":2,"temperature":1,`, 1)
		if code, e, text := explain("/explain/v1/chat/completions", several); code != 200 || !e.Split || e.Prefill != first {
			t.Errorf("choices that are split: status %d: %s", code, text)
		}
		if code, e, text := explain("/explain/v1/chat/completions", strings.Replace(several, `"temperature":1`, `"temperature":0`, 1)); code != 200 || e.Split || e.Reason != "n>1" {
			t.Errorf("choices of one text: status %d: %s", code, text)
		}
		for _, x := range []struct {
			path, body string
			code       int
			says       string
		}{
			{"/explain/v1/models", body, 404, "no such route"}, {"/explain/", body, 404, "no such route"}, {"/explain/v1/completions", `{"model":"none"}`, 404, "no such model"},
			{"/explain/v1/completions", `{`, 400, "bad_json"},
		} {
			if code, _, text := explain(x.path, x.body); code != x.code || !strings.Contains(text, x.says) {
				t.Errorf("%s: status %d: %s; want %d, %s", x.path, code, text, x.code, x.says)
			}
		}
		if n := len(g.Router.Stats().Engines); n != 6 {
			t.Fatal(n)
		}
		for _, e := range g.Router.Stats().Engines {
			if e.InFlight != 0 {
				t.Errorf("%s has %d requests in flight", e.Name, e.InFlight)
			}
		}
	})
}
