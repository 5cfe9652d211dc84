package router_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestFault61EarlyAnswer has an engine, or a proxy before it, refuse a request before it has all of it: the client has that answer, and
// nothing counts against the engine.
func TestFault61EarlyAnswer(t *testing.T) {
	for _, row := range []struct {
		name, answer   string
		status         int
		reason, engine string
	}{
		{"61 413", "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n" + `{"error":{"message":"large"}}`, 413, "decode_rejected", "up"},
		{"61 401", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 502, "credentials_refused", "open"},
		{"61 503", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 503, "engine_refused", "overloaded"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var asked atomic.Int64
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost { // a health check
					w.Header().Set("Connection", "close")
					return
				}
				asked.Add(1)
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, row.answer)
			}))
			t.Cleanup(engine.Close)
			cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "raw", URL: engine.URL}}}}}
			cfg.Health.Failures, cfg.Health.Overload, cfg.Limits.Attempts = 1, time.Hour, 1
			g := routertest.Start(t, cfg, router.Parts{})
			r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"`+strings.Repeat("word ", 4<<20)+`"}`)
			if r.Status != row.status || r.Header.Get("X-Pdrouter-Reason") != row.reason || asked.Load() != 1 {
				t.Errorf("status %d, header %v, the engine was asked %d times: %s", r.Status, r.Header, asked.Load(), r.Body)
			}
			if state := g.EngineStats("raw").State; state != row.engine && state != "unchecked" {
				t.Errorf("the engine is %s; want %s", state, row.engine)
			}
		})
	}
}
