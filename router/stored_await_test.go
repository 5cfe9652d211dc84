package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// fakeResponses are responses that others know of only once somebody has waited for that.
type fakeResponses struct {
	mu    sync.Mutex
	put   map[string][]byte
	known map[string][]byte
}

func (f *fakeResponses) Put(key string, value []byte, _ time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.put == nil {
		f.put, f.known = map[string][]byte{}, map[string][]byte{}
	}
	f.put[key] = value
}

func (f *fakeResponses) Await(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[key] = f.put[key]
}

func (f *fakeResponses) Get(_ context.Context, key string) ([]byte, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	value, ok := f.known[key]
	return value, ok, nil
}

// TestResponsesAreKnownAtTheirEnd asks for a response at another gateway as soon as its answer has ended.
func TestResponsesAreKnownAtTheirEnd(t *testing.T) {
	e := newFakeKeeper(t, "decode-0")
	facts := &fakeResponses{}
	g := routertest.Start(t, routertest.AnyFleet(e.AnyEngine), router.Parts{Responses: facts})
	r := g.Post(routertest.PathResponses, `{"model":"tiny","input":"a"}`)
	var made struct{ ID string }
	if json.Unmarshal([]byte(r.Body), &made) != nil || made.ID == "" {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	if r := g.Ask("GET", routertest.PathResponses+"/"+made.ID); r.Status != 200 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestStreamedResponsesAreKnownAtTheirEnd does the same with a stream, whose first event waits for nobody.
func TestStreamedResponsesAreKnownAtTheirEnd(t *testing.T) {
	more := make(chan struct{})
	streams := routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n")
		w.(http.Flusher).Flush()
		<-more
		fmt.Fprint(w, "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n")
	})
	facts := &fakeResponses{}
	g := routertest.Start(t, routertest.AnyFleet(streams), router.Parts{Responses: facts})
	resp, err := http.Post(g.URL+routertest.PathResponses, "application/json", strings.NewReader(`{"model":"tiny","input":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	facts.mu.Lock()
	put, known := len(facts.put), len(facts.known)
	facts.mu.Unlock()
	if put != 1 || known != 0 {
		t.Errorf("%d put, %d awaited by the first event", put, known)
	}
	close(more)
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	facts.mu.Lock()
	defer facts.mu.Unlock()
	if len(facts.known) != 1 {
		t.Errorf("%d awaited at the end", len(facts.known))
	}
}
