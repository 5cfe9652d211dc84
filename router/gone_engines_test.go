package router_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestEnginesThatAreGoneAreForgotten replaces the only engine 1,000 times, while the first one has a request.
func TestEnginesThatAreGoneAreForgotten(t *testing.T) {
	held, release := make(chan struct{}), make(chan struct{})
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		close(held)
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[]}`)
	})
	var mu sync.Mutex
	told := map[string]int{}
	cfg := routertest.AnyFleet(e)
	g := routertest.Start(t, cfg, router.Parts{Gone: func(engine string) {
		mu.Lock()
		defer mu.Unlock()
		told[engine]++
	}})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(told)
	}
	answered := make(chan int)
	go func() { answered <- g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a"}`).Status }()
	<-held
	for i := range 1000 {
		cfg.Models = slices.Clone(cfg.Models)
		cfg.Models[0].Engines = []config.Engine{{Name: fmt.Sprint("e", i), URL: e.Server.URL}}
		g.Router.Debug().OpenTransfer(fmt.Sprint(i), "p", fmt.Sprint("e", i))
		if err := g.Router.Apply(cfg, g.Parts); err != nil {
			t.Fatal(err)
		}
	}
	routertest.Eventually(t, "those without requests are forgotten", func() bool { return count() == 999 })
	mu.Lock()
	if told["decode-0"] != 0 || told["e999"] != 0 || !g.Router.Knows("decode-0") || !g.Router.Knows("e999") || g.Router.Knows("e998") {
		t.Errorf("decode-0, which has a request, and e999, which is configured: %d, %d; want neither forgotten", told["decode-0"], told["e999"])
	}
	mu.Unlock()
	close(release)
	if status := <-answered; status != 200 {
		t.Errorf("status %d", status)
	}
	routertest.Eventually(t, "the first is forgotten when its request has ended", func() bool { return count() == 1000 })
	mu.Lock()
	defer mu.Unlock()
	for name, n := range told {
		if n != 1 {
			t.Errorf("%s is forgotten %d times", name, n)
		}
	}
	if moved := g.Router.Stats().Moved; len(moved) > 1 {
		t.Errorf("%d pairs have totals; want that of e999 alone", len(moved))
	}
	if n := g.Router.Debug().Attended(); n != 1 {
		t.Errorf("%d engines are looked after", n)
	}
}

// TestEngineThatIsLostAtOnce: an engine that the configuration has lost before it was looked at is looked after too while it has a request.
func TestEngineThatIsLostAtOnce(t *testing.T) {
	e := routertest.NewAnyEngine(t, func(http.ResponseWriter, *http.Request, string) {})
	cfg := routertest.AnyFleet(e)
	var told atomic.Int64
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var busy router.DebugEngine
	parts := router.Parts{Gone: func(string) { told.Add(1) }}
	g := routertest.StartOn(t, ln, cfg, parts, http.DefaultClient, func(r *router.Router) {
		busy = r.Debug().Engines()[0]
		busy.AddInFlight(1)
		cfg.Models = slices.Clone(cfg.Models)
		cfg.Models[0].Engines = []config.Engine{{Name: "next", URL: e.Server.URL}}
		if err := r.Apply(cfg, parts); err != nil {
			t.Fatal(err)
		}
	})
	attended := g.Router.Debug().Attended
	routertest.Eventually(t, "engines are looked after", func() bool { return attended() > 0 })
	if n := attended(); n != 2 || told.Load() != 0 {
		t.Errorf("%d engines are looked after, and %d are told to be gone; want 2 and none", n, told.Load())
	}
	busy.AddInFlight(-1)
	routertest.Eventually(t, "it is told to be gone", func() bool { return told.Load() > 0 })
	if n := attended(); n != 1 || told.Load() != 1 {
		t.Errorf("%d engines are looked after, and %d are told to be gone; want 1 and 1", n, told.Load())
	}
}
