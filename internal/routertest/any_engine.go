package routertest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// AnyEngine is an engine that answers every path but /health as it is told, and notes what it was asked. What it is asked for
// by the router itself is not noted: its list of models is answered with models, and it has no metrics.
type AnyEngine struct {
	Server *httptest.Server
	answer func(w http.ResponseWriter, r *http.Request, body string)

	mu     sync.Mutex
	models string // the answer to GET /v1/models; "" is 404
	asked  []AnyRequest
}

type AnyRequest struct {
	Method, URI, Body string
	Header            http.Header
}

// NewAnyEngine starts an engine that answers with answer.
func NewAnyEngine(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body string)) *AnyEngine {
	t.Helper()
	f := &AnyEngine{answer: answer}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		models := f.models
		if r.RequestURI != "/health" && r.RequestURI != PathModels && r.RequestURI != "/metrics" {
			f.asked = append(f.asked, AnyRequest{r.Method, r.RequestURI, string(body), r.Header.Clone()})
		}
		f.mu.Unlock()
		switch {
		case r.RequestURI == "/health":
		case r.RequestURI == PathModels && models != "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, models)
		case r.RequestURI == PathModels, r.RequestURI == "/metrics":
			http.NotFound(w, r)
		default:
			f.answer(w, r, string(body))
		}
	}))
	t.Cleanup(func() { f.Server.CloseClientConnections(); f.Server.Close() })
	return f
}

// Serves changes the list of models that the engine reports.
func (f *AnyEngine) Serves(list string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.models = list
}

// All returns what the engine was asked since the last call.
func (f *AnyEngine) All() []AnyRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// JSONAnswer answers everything with that.
func JSONAnswer(status int, body string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// AnyFleet is a model of aggregated engines.
func AnyFleet(decode ...*AnyEngine) config.Config {
	m := config.Model{Name: "tiny", Connector: connector.NameNone}
	for i, e := range decode {
		m.Engines = append(m.Engines, config.Engine{Name: fmt.Sprintf("decode-%d", i), URL: e.Server.URL})
	}
	return config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: 50 * time.Millisecond}}
}
