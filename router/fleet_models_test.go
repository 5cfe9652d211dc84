package router_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestModelsAreSeldomAskedFor has engines that do not tell what they serve: they are asked no more often than others, and it is
// said once.
func TestModelsAreSeldomAskedFor(t *testing.T) {
	for _, row := range []struct {
		name, answer string
		status       int
		said         int
	}{{"no such route", "", 404, 0}, {"not a list", "{", 200, 1}, {"a list", `{"data":[{"id":"tiny"}]}`, 200, 0}} {
		t.Run(row.name, func(t *testing.T) {
			var models, result atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/health" {
					result.Add(1)
					return
				}
				models.Add(1)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.answer)
			}))
			defer srv.Close()
			var mu sync.Mutex
			var log bytes.Buffer
			cfg := config.Config{Models: []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{{Name: "e", URL: srv.URL}}}},
				Timeouts: config.Timeouts{Health: 10 * time.Millisecond}}
			g := routertest.Start(t, cfg, router.Parts{Log: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))})
			routertest.Eventually(t, "it is looked at often", func() bool { return models.Load() > 0 && result.Load() >= 60 })
			g.Stop()
			if m, h := models.Load(), result.Load(); m > h/2 {
				t.Errorf("%d lists for %d health checks", m, h)
			}
			mu.Lock()
			defer mu.Unlock()
			if n := strings.Count(log.String(), "list of models"); n != row.said {
				t.Errorf("it is said %d times; want %d", n, row.said)
			}
		})
	}
}

// locked is a writer that several may use.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
