package router_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestCostPolicyBurst has tokens that were kept back, by the network or by a slow client, arrive at once, each in a chunk of its own. They took as
// long as they were kept back: an engine does not make a token in microseconds.
func TestCostPolicyBurst(t *testing.T) {
	const tokens, kept = 32, 160 * time.Millisecond
	chunk := func(data string) string {
		event := "data: " + data + "\n\n"
		return fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
	}
	token := chunk(`{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}`)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for _, part := range []string{
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + token,
			strings.Repeat(token, tokens) + chunk("[DONE]") + "0\r\n\r\n",
		} {
			_, _ = conn.Write([]byte(part))
			time.Sleep(kept)
		}
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "a", URL: srv.URL}}}}}
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	for range 3 {
		if r := g.Post("/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":40,"stream":true}`); r.Status != 200 || strings.Count(r.Body, `"a"`) != tokens+1 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
	}
	g.WaitIdle()
	_, e, _ := explain(t, g, "/explain/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":40,"stream":true}`)
	if least := kept.Seconds() / (2 * tokens); len(e.Paths) != 1 || e.Paths[0].ITL < least {
		t.Errorf("paths %+v; want one with at least %v s between tokens", e.Paths, least)
	}
}
