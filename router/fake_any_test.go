package router

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// fakeAny is an engine that answers every path but /health as it is told, and notes what it was asked. What it is asked for
// by the router itself, its list of models, is answered with models.
type fakeAny struct {
	srv    *httptest.Server
	answer func(w http.ResponseWriter, r *http.Request, body string)

	mu     sync.Mutex
	models string // the answer to GET /v1/models; "" is 404
	asked  []askedAny
}

type askedAny struct {
	Method, URI, Body string
	Header            http.Header
}

func newFakeAny(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body string)) *fakeAny {
	t.Helper()
	f := &fakeAny{answer: answer}
	f.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		models := f.models
		if r.RequestURI != "/health" && r.RequestURI != pathModels {
			f.asked = append(f.asked, askedAny{r.Method, r.RequestURI, string(body), r.Header.Clone()})
		}
		f.mu.Unlock()
		switch {
		case r.RequestURI == "/health":
		case r.RequestURI == pathModels && models != "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, models)
		case r.RequestURI == pathModels:
			http.NotFound(w, r)
		default:
			f.answer(w, r, string(body))
		}
	}))
	t.Cleanup(func() { f.srv.CloseClientConnections(); f.srv.Close() })
	return f
}

func (f *fakeAny) serves(list string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.models = list
}

// all returns what the engine was asked since the last call.
func (f *fakeAny) all() []askedAny {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// jsonAnswer answers everything with that.
func jsonAnswer(status int, body string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}
