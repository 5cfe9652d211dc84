package router_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// fakeEnding takes every token until it has ended.
type fakeEnding struct{ ended atomic.Bool }

func (f *fakeEnding) Authenticate(string) (auth.Principal, error) {
	if f.ended.Load() {
		return auth.Principal{}, &auth.Error{Code: auth.InvalidToken, Err: errors.New("expired")}
	}
	return auth.Principal{Subject: "alice"}, nil
}

// TestFault40TokenEndsMidStream: the stream of a request whose token ends meanwhile goes on to its end; the next request
// is refused.
func TestFault40TokenEndsMidStream(t *testing.T) {
	more := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"one\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"two\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(engine.Close)
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Models[0].Engines = []config.Engine{{Name: "e", URL: engine.URL}}
	var clients fakeEnding
	g := routertest.Start(t, s.Config, router.Parts{Clients: &clients})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(`{"model":"tiny","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer a")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if resp.StatusCode != 200 || !lines.Scan() || !strings.Contains(lines.Text(), "one") {
		t.Fatalf("status %d, %q; want the first event", resp.StatusCode, lines.Text())
	}
	clients.ended.Store(true)
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", "Bearer a"); r.Status != 401 {
		t.Errorf("the next request: status %d, %s; want 401", r.Status, r.Body)
	}
	close(more)
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if text := strings.Join(rest, "\n"); lines.Err() != nil || !strings.Contains(text, "two") || !strings.Contains(text, "data: [DONE]") {
		t.Errorf("the rest of the stream: %q, %v; want it whole", text, lines.Err())
	}
}

// TestFault30NoToken calls without credentials, with wrong ones, and for a model that is not the caller's.
func TestFault30NoToken(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{}})
	for _, authorization := range []string{"", "Basic abc", "Bearer bad"} {
		r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", authorization)
		if r.Status != 401 || r.Header.Get("Www-Authenticate") == "" {
			t.Errorf("%q: status %d, header %v", authorization, r.Status, r.Header)
		}
		routertest.ErrorOf(t, r.Body)
	}
	if n := s.Cluster.Count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", "Bearer good"); r.Status != 200 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if sum := g.Summary(1); sum.Subject != "someone" {
		t.Errorf("subject %q", sum.Subject)
	}
	g.Stop()
	other := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{Models: []string{"large"}}})
	if r := other.Post(routertest.PathCompletions, routertest.PlainBody, "Authorization", "Bearer good"); r.Status != 403 {
		t.Errorf("forbidden model: status %d; want 403", r.Status)
	}
}
