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
	}{{"no such route", "", 404, 0}, {"not a list", "{", 200, 1}, {"a list", `{"data":[{"id":"tiny"}]}`, 200, 0}, {"of another model", `{"data":[{"id":"other"}]}`, 200, 1}} {
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

// TestEngineOfAnotherModel has an engine restart with another model. That it does not know the model is its fault, not the client's.
func TestEngineOfAnotherModel(t *testing.T) {
	engine := func(model string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.URL.Path == "/v1/models":
				_, _ = io.WriteString(w, `{"data":[{"id":"`+model+`"}]}`)
			case r.URL.Path == "/health":
			case model == "tiny":
				_, _ = io.WriteString(w, `{"id":"a","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":"a","finish_reason":"length"}]}`)
			default:
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"error":{"message":"The model does not exist.","type":"NotFoundError","param":"model","code":404}}`)
			}
		}))
	}
	other, tiny := engine("other"), engine("tiny")
	defer other.Close()
	defer tiny.Close()
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{{Name: "e0", URL: other.URL}, {Name: "e1", URL: tiny.URL}}}},
		Timeouts: config.Timeouts{Health: 10 * time.Millisecond}}
	var mu sync.Mutex
	var log bytes.Buffer
	g := routertest.Start(t, cfg, router.Parts{Planner: routertest.FirstUsable{}, Log: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))})
	routertest.Eventually(t, "the list was read", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), "list of models")
	})
	g.MustServe(6, routertest.PlainBody)
	if got := g.EngineStats("e0"); got.State != "open" {
		t.Errorf("%+v", got)
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
