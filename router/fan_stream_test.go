package router_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestFanFailsAsItBegins has a choice fail at the moment at which the stream of all begins. What is read of the outcome then is
// for the race detector to see.
func TestFanFailsAsItBegins(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	s.Config.Limits.MaxParallelChoices, s.Config.Health.Failures, s.Config.Health.PairFailures = 8, 1000, 1000
	var begun atomic.Int64
	asked := s.Decode[0].Server.Config.Handler
	s.Decode[0].Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) { // a handshake, or a health check
			r.Body = io.NopCloser(bytes.NewReader(body))
			asked.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
		w.(http.Flusher).Flush()
		for begun.Add(1); begun.Load()%2 != 0 && r.Context().Err() == nil; {
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // about as long as the gateway takes to begin
		_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"as told\",\"code\":500}}\n\n")
	})
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	g.WaitWarm()
	for range 300 {
		if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","n":2,"max_tokens":16,"stream":true}`); strings.Count(r.Body, `"error"`) > 1 {
			t.Errorf("status %d, end %v: %q", r.Status, r.Err, r.Body)
		}
	}
}

// TestFanKeepAlive has a stream of two choices be silent between tokens: comments come between whole events.
func TestFanKeepAlive(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoLateToken, N: 400}}})
	s.Config.Limits.MaxParallelChoices = 8
	every := 20 * time.Millisecond
	s.Config.Timeouts.KeepAlive = &every
	g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
	routertest.Eventually(t, "the pair is ready", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
	r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","n":2,"max_tokens":16,"stream":true}`)
	if r.Header.Get("X-Pdrouter-Parts") != "2" {
		t.Fatalf("status %d, header %v", r.Status, r.Header)
	}
	comments := strings.Count(r.Body, router.KeepAliveEvent)
	bare := strings.ReplaceAll(r.Body, router.KeepAliveEvent, "")
	if comments == 0 || r.Err != nil || strings.Contains(bare, "keep-alive") {
		t.Errorf("%d comments, end %v: %q", comments, r.Err, r.Body)
	}
	for _, event := range strings.SplitAfter(strings.TrimSuffix(bare, "\n\n"), "\n\n") {
		if !strings.HasPrefix(event, "data: ") {
			t.Errorf("event %q", event)
		}
	}
}
