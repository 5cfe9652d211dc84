package router_test

import (
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestFault13Unsupported asks for what is known and not served.
func TestFault13Unsupported(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(501, `{"error":{"message":"no","type":"NotImplementedError","param":null,"code":501}}`))
	g := routertest.Start(t, routertest.AnyFleet(e, e), router.Parts{})
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
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
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
			g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
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
