package router_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestLoRA: requests for an adapter go to the engine that has it loaded, as the engine says, and follow it to another; an engine that started again
// has none.
func TestLoRA(t *testing.T) {
	c := refengine.Config{Adapters: []string{"a", "b"}, AdapterSlots: 1, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}}
	m := config.Model{Name: "reference", Connector: connector.NameNone}
	var engines []*refenginetest.Served
	for _, name := range []string{"e0", "e1"} {
		engines = append(engines, refenginetest.Run(t, c))
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: "http://" + engines[len(engines)-1].Addr})
	}
	const body = `{"model":"MODEL","prompt":"hello","max_tokens":2}`
	direct := func(engine int, adapter string) { // as another gateway does
		t.Helper()
		resp, err := http.Post("http://"+engines[engine].Addr+"/v1/completions", "application/json", strings.NewReader(strings.Replace(body, "MODEL", adapter, 1)))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("engine %d: status %d", engine, resp.StatusCode)
		}
	}
	direct(0, "a")
	direct(1, "b")
	weight := 3.0
	by := policies.Role{Scorers: []policies.Part{{Name: "lora", Weight: &weight}, {Name: "load"}}}
	g := routertest.Start(t, config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: 20 * time.Millisecond},
		Health: config.Health{SlowStart: new(time.Duration)}}, // else a share decides after a start
		router.Parts{Planner: routertest.Policy(t, policies.Choosing{Decode: by})})
	has := func(engine string, adapters ...string) bool {
		return slices.Equal(g.Router.Debug().Engine(engine).LoadedAdapters(), adapters)
	}
	served := func(model string) (by []string) {
		t.Helper()
		for range 6 {
			r := g.Post(routertest.PathCompletions, strings.Replace(body, "MODEL", model, 1))
			if r.Status != http.StatusOK || !strings.Contains(r.Body, `"model":"`+model+`"`) {
				t.Fatalf("%s: status %d: %s", model, r.Status, r.Body)
			}
			if e := r.Header.Get("X-Pdrouter-Decode"); !slices.Contains(by, e) {
				by = append(by, e)
			}
		}
		slices.Sort(by)
		return by
	}
	check := func(when, model string, want ...string) {
		t.Helper()
		if got := served(model); !slices.Equal(got, want) {
			t.Errorf("%s: requests for %s went to %v; want %v", when, model, got, want)
		}
	}
	routertest.Eventually(t, "both have said what they have loaded", func() bool { return has("e0", "a") && has("e1", "b") })
	check("loaded", "a", "e0")
	check("loaded", "b", "e1")
	check("loaded", "reference", "e0", "e1")

	direct(0, "b")
	direct(1, "a")
	routertest.Eventually(t, "they have said that the adapters moved", func() bool { return has("e0", "b") && has("e1", "a") })
	check("moved", "a", "e1")
	check("moved", "b", "e0")

	for i, e := range engines {
		if err := e.Kill(); err != nil {
			t.Fatal(err)
		}
		engines[i] = refenginetest.RunAt(t, e.Addr, c)
	}
	routertest.Eventually(t, "they have nothing after their start", func() bool { return has("e0") && has("e1") })
	routertest.Eventually(t, "both are used", func() bool {
		return g.Router.Debug().Engine("e0").Usable() && g.Router.Debug().Engine("e1").Usable()
	})
	direct(0, "a")
	routertest.Eventually(t, "one has said that it has it again", func() bool { return has("e0", "a") })
	check("after the start", "a", "e0")
}

// TestLoRAUnsaid: what an engine has said of its adapters is forgotten when its metrics cannot be read, and an engine that lists no adapters is not
// asked.
func TestLoRAUnsaid(t *testing.T) {
	const none = `{"data":[{"id":"m"}]}` // an engine without adapters
	var broken atomic.Bool
	var asked atomic.Int64
	begun := time.Now()
	serve := func(list string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == routertest.PathModels:
				_, _ = io.WriteString(w, list)
			case r.URL.Path != "/metrics":
			case broken.Load():
				w.WriteHeader(http.StatusInternalServerError)
			default:
				if list == none {
					asked.Add(1)
				}
				_, _ = io.WriteString(w, "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 5\n")
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	m := config.Model{Name: "m", Connector: connector.NameNone, Engines: []config.Engine{
		{Name: "e0", URL: serve(`{"data":[{"id":"m"},{"id":"a","parent":"m"}]}`)}, {Name: "e1", URL: serve(none)},
	}}
	g := routertest.Start(t, config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: 20 * time.Millisecond}},
		router.Parts{Planner: routertest.Policy(t, policies.Choosing{Decode: policies.Role{Scorers: []policies.Part{{Name: "lora"}}}})})
	loaded := func() int { return len(g.Router.Debug().Engine("e0").LoadedAdapters()) }
	routertest.Eventually(t, "it has said what it has loaded", func() bool { return loaded() == 1 })
	broken.Store(true)
	routertest.Eventually(t, "that is forgotten", func() bool { return loaded() == 0 })
	broken.Store(false)
	routertest.Eventually(t, "it has said so again", func() bool { return loaded() == 1 })
	if n := asked.Load(); n > 1+int64(time.Since(begun)/(5*time.Second)) { // its load is asked for, and seldom again as it does not say
		t.Errorf("the engine without adapters was asked %d times", n)
	}
}
