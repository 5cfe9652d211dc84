package router_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/internal/yamlfile"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestApplyCarriesOver: engines and pairs that stay are the same ones, with all that is known of them; one whose entry has
// changed is another, and is made known to its peers anew. What is left behind is checked when the gateway stops.
func TestApplyCarriesOver(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 2, nil)
	s.Config.Timeouts.Health = 20 * time.Millisecond
	g := routertest.Start(t, s.Config, router.Parts{})
	apply := func(change func(*config.Model)) {
		t.Helper()
		cfg := s.Config
		m := cfg.Models[0]
		m.Decode = append([]config.Engine(nil), m.Decode...)
		change(&m)
		cfg.Models = []config.Model{m}
		if err := g.Router.Apply(cfg, g.Parts); err != nil {
			t.Fatal(err)
		}
	}
	served := func() {
		t.Helper()
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
	}
	warm := func(n int) {
		t.Helper()
		routertest.Eventually(t, "pairs are warm", func() bool { return g.Router.Stats().PairsWarm == n })
	}
	warm(2)
	served()
	prefill, decode, pair, done := g.Router.Debug().Engine("prefill-0"), g.Router.Debug().Engine("decode-0"), g.Router.Debug().Pair(0), g.Router.Stats().Handshakes.Done
	left := g.Router.Debug().Engine("decode-1")
	decode.AddInFlight(1) // something that is known of it
	apply(func(m *config.Model) { m.Decode = m.Decode[:1] })
	now := g.Router.Debug()
	if now.Engine("decode-0") != decode || now.Engine("prefill-0") != prefill || !now.Engine("decode-1").None() {
		t.Error("engines that stay are others, or one that goes has stayed")
	}
	if now.Pair(0) != pair || now.PairCount() != 1 {
		t.Error("the pair that stays is another")
	}
	now.Engine("decode-0").AddInFlight(-1)
	served()
	if n := g.Router.Stats().Handshakes.Done; n != done {
		t.Errorf("%d handshakes of pairs that knew each other", n-done)
	}
	apply(func(m *config.Model) { m.Decode[1].Drain = true })
	if e := g.Router.Debug().Engine("decode-1"); e == left || e.Usable() {
		t.Error("an engine that came back to be drained is the old one, or is used")
	}
	apply(func(m *config.Model) { m.Decode[0].URL += "/" }) // another entry
	e := g.Router.Debug().Engine("decode-0")
	if e == decode || e.Generation() <= decode.Generation() {
		t.Error("an engine with another entry is the same, or the same run")
	}
	warm(2)
	served()
	if n := g.Router.Stats().Handshakes.Done; n <= done {
		t.Error("no handshake of an engine that is another")
	}
	if err := g.Router.Apply(config.Config{}, router.Parts{}); err == nil || g.Router.Debug().Engine("decode-0") != e {
		t.Errorf("a configuration with mistakes: %v", err)
	}
}

// TestApplyLetsLegsFinish: a stream from an engine that is of the configuration no more comes to its end, and the engine's
// connections are closed then.
func TestApplyLetsLegsFinish(t *testing.T) {
	more, open := make(chan struct{}), new(atomic.Int32)
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"id":"x","choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		<-more
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	engine.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	engine.Start()
	defer engine.Close()
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	next := s.Config
	s.Config = config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "old", URL: engine.URL}}}}}
	g := routertest.Start(t, s.Config, router.Parts{})
	resp, err := http.Post(g.URL+routertest.PathCompletions, "application/json", strings.NewReader(`{"model":"tiny","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := g.Router.Apply(next, router.Parts{}); err != nil {
		t.Fatal(err)
	}
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Errorf("the engine that has come: %d %s", r.Status, r.Body)
	}
	close(more)
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v: %q", err, b)
	}
	routertest.Eventually(t, "no connection to the engine that has gone", func() bool { return open.Load() == 0 })
}

// The largest body holds for the next request, on a connection that is open too.
func TestApplyBodyLimit(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for _, want := range []int{200, http.StatusRequestEntityTooLarge} {
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != want {
			t.Fatalf("status %d, want %d", r.Status, want)
		}
		cfg := s.Config
		cfg.Limits.Body = yamlfile.Size(len(routertest.PlainBody) - 1)
		if err := g.Router.Apply(cfg, g.Parts); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewValidates: a router is not made of a configuration with a mistake.
func TestNewValidates(t *testing.T) {
	for want, cfg := range map[string]config.Config{
		"":                       {Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "a", URL: "http://10.0.0.1:8000"}}}}},
		"router: config: models": {},
	} {
		if _, err := router.New(cfg, router.Parts{}); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("New: %v; want %q", err, want)
		}
	}
}
