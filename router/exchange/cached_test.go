package exchange_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/exchange"
)

// TestCachedTokensOfShortStream has the whole stream of a push decode leg come in one read behind prefill's answer: the client
// is told of the tokens that prefill had cached, not of those that came over.
func TestCachedTokensOfShortStream(t *testing.T) {
	serve := func(f http.HandlerFunc) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				f(w, r)
			}
		}))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		return srv.URL
	}
	var g *routertest.Gateway
	usage := func(cached int) string {
		return fmt.Sprintf(`"usage":{"prompt_tokens":200,"total_tokens":202,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":%d}}`, cached)
	}
	answer := `{"id":"c","choices":[{"index":0,"text":"x","finish_reason":"length"}],` + usage(128)
	prefill := serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer+`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],`+
			`"remote_engine_id":"e1","remote_request_id":"c-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`)
	})
	decode := serve(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(raw), `"stream":true`) { // a handshake
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer+"}")
			return
		}
		for end := time.Now().Add(20 * time.Second); !exchange.NewDebug(g.Router.Debug().Exchanges()).PrefillAnswered() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n"+
			"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n"+
			`data: {"id":"c","choices":[],`+usage(199)+"}\n\ndata: [DONE]\n\n")
	})
	g = routertest.Start(t, config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{{Name: "p", URL: prefill}},
		Decode: []config.Engine{{Name: "d", URL: decode}}}}}, router.Parts{Planner: routertest.FirstUsable{}})
	routertest.Eventually(t, "the pair is ready", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
	body := `{"model":"m","prompt":"` + strings.Repeat("word ", 300) + `","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`
	for i := range 20 {
		if r := g.Post(routertest.PathCompletions, body); !strings.Contains(r.Body, `"cached_tokens":128`) || r.Err != nil {
			t.Fatalf("stream %d: end %v: %s", i, r.Err, r.Body)
		}
		if n := g.Summary(i + 1).CachedTokens; n != 128 {
			t.Errorf("the summary says %d", n)
		}
	}
}
