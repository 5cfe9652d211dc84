package edge_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
)

// TestFault11ControlRoutes asks over raw TCP for what engines serve beside the table, and for a lot that looks like it: no
// engine sees any of it.
func TestFault11ControlRoutes(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"ok":true}`))
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
	control := []string{
		"/invocations", "/pause", "/resume", "/is_paused", "/abort_requests", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/update_weights",
		"/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update",
		"/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size", "/collective_rpc",
		"/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
		"/fault_tolerance/apply", "/fault_tolerance/status", "/kv_event_sources", "/start_profile", "/stop_profile", "/v1/load_lora_adapter",
		"/v1/unload_lora_adapter", "/server_info", "/tokenizer_info", "/docs", "/redoc", "/openapi.json", "/ping", "/version",
		"/load", "/metrics", "/v1/decisions", "/v1/systemone", "/generative_scoring", "/cohere/v2/chat", "/kvplane/v1/events", "/",
	}
	body := `{"model":"tiny"}`
	ask := func(method, path string) string {
		request := method + " " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
		if method != "GET" {
			request += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
		} else {
			request += "\r\n"
		}
		status, rest, _ := routertest.RawRequest(t, g.Addr, request)
		if !strings.Contains(status, " 200 ") && !strings.Contains(rest, `"error"`) {
			t.Errorf("%s %q: %q, and no error in OpenAI's shape", method, path, status)
		}
		return status
	}
	for _, path := range control {
		for _, method := range []string{"POST", "GET"} {
			if status := ask(method, path); !strings.Contains(status, " 404 ") {
				t.Errorf("%s %s: %q; want 404", method, path, status)
			}
		}
	}
	random := rand.New(rand.NewPCG(11, 17))
	mutants := []func(string) string{
		strings.ToUpper,
		func(s string) string { return s + "/" },
		func(s string) string { return "/" + s },
		func(s string) string { return "/v1/.." + s },
		func(s string) string { return "/v1/models/.." + s },
		func(s string) string { return "/v1/responses/.." + s },
		func(s string) string { return "/v1/responses/resp_1" + s },
		func(s string) string { return s + "%00" },
		func(s string) string { return s + ";a" },
		func(s string) string { return s + "?a=b" },
		func(s string) string { return strings.Replace(s, "/", "%2f", 1+random.IntN(2)) },
		func(s string) string { return strings.Replace(s, "/", "//", 1) },
		func(s string) string { return "/." + s },
		func(s string) string { return "\\" + s },
		func(s string) string {
			i := random.IntN(len(s))
			return fmt.Sprintf("%s%%%02x%s", s[:i], s[i], s[i+1:])
		},
	}
	all := edge.Routes()
	known := func(path string) bool {
		path, _, _ = strings.Cut(path, "?")
		return edge.HasRoute(path)
	}
	for range 400 {
		path := control[random.IntN(len(control))]
		if random.IntN(2) == 0 {
			path = all[random.IntN(len(all))]
		}
		for range 1 + random.IntN(2) {
			path = mutants[random.IntN(len(mutants))](path)
		}
		if !known(path) {
			ask("POST", path)
		}
	}
	if asked := e.All(); len(asked) != 0 {
		t.Errorf("the engine was asked %+v", asked)
	}
}

// TestPassedRoutes asks for every route that is passed to one engine.
func TestPassedRoutes(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"object":"list","x":1.0,"usage":{"prompt_tokens":5,"completion_tokens":0},"kv_transfer_params":null}`))
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Clients: routertest.Clients{}})
	body := `{ "input":"é", "model":"tiny","seed":9223372036854775807,"request_id":"mine","stream":true,"kv_transfer_params":{"remote_host":"6.6.6.6"}}`
	n := 0
	for _, path := range edge.PassedRoutes() {
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
		if s := g.Summary(n); s.Route != path || s.Decode != "decode-0" || s.Outcome != dispatch.Completed || s.PromptTokens != 5 || !s.Removed || s.Subject != "someone" {
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
