package router_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestFault11ControlRoutes asks over raw TCP for what engines serve beside the table, and for a lot that looks like it: no
// engine sees any of it.
func TestFault11ControlRoutes(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"ok":true}`))
	g := routertest.Start(t, anyFleet(e), router.Parts{})
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
	all := router.Routes()
	known := func(path string) bool {
		path, _, _ = strings.Cut(path, "?")
		return router.HasRoute(path)
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

// TestFault13Unsupported asks for what is known and not served.
func TestFault13Unsupported(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(501, `{"error":{"message":"no","type":"NotImplementedError","param":null,"code":501}}`))
	g := routertest.Start(t, anyFleet(e, e), router.Parts{})
	status, rest, _ := routertest.RawRequest(t, g.Addr, "GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if !strings.Contains(status, " 501 ") || !strings.Contains(rest, "X-Should-Retry: false") {
		t.Errorf("%q\n%s", status, rest)
	}
	if asked := e.All(); len(asked) != 0 {
		t.Errorf("the engine was asked %+v", asked)
	}
	r := g.Post(routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}]}`)
	if r.Status != 501 || r.Header.Get("X-Should-Retry") != "false" || len(e.All()) != 1 {
		t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
}

// TestFault20LeverHeaders sends what engines would heed: none of it reaches them.
func TestFault20LeverHeaders(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[]}`))
	g := routertest.Start(t, anyFleet(e), router.Parts{})
	for _, path := range []string{routertest.PathCompletions, "/v1/embeddings"} {
		r := g.Post(path, routertest.PlainBody, "X-Vllm-Priority", "-5", "X-Data-Parallel-Rank", "3", "X-Prefiller-Host-Port", "6.6.6.6:1",
			"X-Prefiller-Url", "http://6.6.6.6", "X-Kv-Cache-Hit", "1", "X-Session-Id", "s", "Forwarded", "for=a", "X-Forwarded-For", "a")
		asked := e.All()
		if r.Status != 200 || len(asked) != 1 {
			t.Fatalf("%s: status %d, asked %d times", path, r.Status, len(asked))
		}
		for name := range asked[0].Header {
			switch name {
			case "X-Request-Id", "Content-Type", "Content-Length", "Accept", "Accept-Encoding":
			default:
				t.Errorf("%s: the engine was told %s: %s", path, name, asked[0].Header.Get(name))
			}
		}
	}
}

// TestTraceContext sends a trace to the engines as W3C Trace Context has it, and nothing that is not well formed.
func TestTraceContext(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, row := range []struct {
		name, parent, state, wantParent, wantState string
	}{
		{"both", parent, "a=1,b=2", parent, "a=1,b=2"},
		{"parent", parent, "", parent, ""},
		{"state alone", "", "a=1", "", ""},
		{"later version", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", "", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", ""},
		{"upper case", strings.ToUpper(parent), "a=1", "", ""},
		{"no id", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "", "", ""},
		{"longer", parent + "-x", "", "", ""},
		{"version ff", "ff" + parent[2:], "", "", ""},
		{"long state", parent, strings.Repeat("a", 600), parent, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{}`))
			g := routertest.Start(t, anyFleet(e), router.Parts{})
			if r := g.Post("/tokenize", `{"model":"tiny"}`, "Traceparent", row.parent, "Tracestate", row.state); r.Status != 200 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			h := e.All()[0].Header
			if h.Get("Traceparent") != row.wantParent || h.Get("Tracestate") != row.wantState {
				t.Errorf("got %q and %q", h.Get("Traceparent"), h.Get("Tracestate"))
			}
		})
	}
}
