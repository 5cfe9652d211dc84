package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/gateway"
	"pdrouter/internal/redistest"
	"pdrouter/router"
)

// twoGateways are two gateways with one Redis. The first one knows engine a alone, the second one engines a and b. Engines answer at once, unless the
// prompt is "hold": then when release is called.
type twoGateways struct {
	t             *testing.T
	first, second *gateway.Gateway
	log           lines // of both
	release       func()
	held          sync.WaitGroup
}

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func startTwo(t *testing.T, redis, auth string) *twoGateways {
	t.Helper()
	hold := make(chan struct{})
	s := &twoGateways{t: t, release: sync.OnceFunc(func() { close(hold) })}
	engine := func() string {
		e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); strings.Contains(string(b), "hold") {
				<-hold
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a"}]}`)
		}))
		t.Cleanup(e.Close)
		return e.URL
	}
	a, b := engine(), engine()
	start := func(engines string) *gateway.Gateway {
		file := filepath.Join(t.TempDir(), "pdrouter.yaml")
		text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [%s]}]\nmetadata: {store: redis, redis: {address: %q}}\n%s", engines, redis, auth)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := gateway.New(gateway.Load(t, file), slog.New(slog.NewTextHandler(&s.log, nil)), gateway.Options{})
		if err != nil {
			t.Fatal(err)
		}
		gateway.Running(t, g)
		return g
	}
	s.first, s.second = start(fmt.Sprintf("{name: a, url: %q}", a)), start(fmt.Sprintf("{name: a, url: %q}, {name: b, url: %q}", a, b))
	t.Cleanup(func() { s.release(); s.held.Wait(); http.DefaultClient.CloseIdleConnections() }) // before the gateways end
	return s
}

// ask sends a request and returns the engine that has answered.
func (s *twoGateways) ask(g *gateway.Gateway, prompt string) string {
	resp, err := http.Post("http://"+g.Clients().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"`+prompt+`","max_tokens":1}`))
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		s.t.Errorf("%d %s", resp.StatusCode, b)
	}
	return resp.Header.Get("X-Pdrouter-Decode")
}

// elsewhere is what a gateway knows of other gateways' requests at an engine.
func (s *twoGateways) elsewhere(g *gateway.Gateway, engine string) int {
	resp, err := http.Get("http://" + g.Operations().String() + "/ready")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var state router.Stats
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		s.t.Fatal(err)
	}
	for _, e := range state.Engines {
		if e.Name == engine {
			return e.Others
		}
	}
	return -1
}

// TestGatewaysShareLoad: a gateway avoids the engine that another one has loaded, for as long as it is loaded.
func TestGatewaysShareLoad(t *testing.T) {
	for name, signed := range map[string]bool{"unsigned": false, "signed": true} {
		t.Run(name, func(t *testing.T) {
			auth := ""
			if signed {
				_, private, public := gateway.MakeKey(t, filepath.Join(t.TempDir(), "keys"))
				auth = fmt.Sprintf("auth: {records: {key_file: %q, trusted: [%q]}}\n", private, public)
			}
			server := redistest.Start(t)
			s := startTwo(t, server.Address(), auth)
			for range 4 {
				s.held.Go(func() { s.ask(s.first, "hold") })
			}
			soon(t, "the second gateway knows the first one's requests", func() bool { return s.elsewhere(s.second, "a") == 4 })
			for range 4 {
				if got := s.ask(s.second, "x"); got != "b" {
					t.Errorf("%s was asked; want b", got)
				}
			}
			kept := server.Do("HVALS", "pdrouter:load")
			if !strings.Contains(kept, "\"a\":[4,") != signed || strings.Contains(kept, "hold") {
				t.Errorf("Redis has %s", kept)
			}
			if signed { // what no gateway has signed is ignored
				server.Do("HSET", "pdrouter:load", "forger", "9999999999999@1 {\"engines\":{\"b\":[1000]}}")
				soon(t, "the forged entry is refused", func() bool {
					return strings.Contains(s.scrape(s.second), `pdrouter_shared_refused_total{what="load"} `) && !strings.Contains(s.scrape(s.second), `pdrouter_shared_refused_total{what="load"} 0`)
				})
				if got := s.elsewhere(s.second, "b"); got != 0 {
					t.Errorf("a forged load of %d counts", got)
				}
			}
			s.release()
			soon(t, "the engine's requests have ended", func() bool { return s.elsewhere(s.second, "a") == 0 })
		})
	}
}

func (s *twoGateways) scrape(g *gateway.Gateway) string {
	resp, err := http.Get("http://" + g.Operations().String() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// TestGatewaysShareLoadWithoutRedis: while Redis is stopped, requests are served, what other gateways had is forgotten, and each gateway goes by its
// own load. All comes back with it.
func TestGatewaysShareLoadWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	s := startTwo(t, server.Address(), "")
	for range 4 {
		s.held.Go(func() { s.ask(s.first, "hold") })
	}
	soon(t, "the second gateway knows the first one's requests", func() bool { return s.elsewhere(s.second, "a") == 4 })
	server.Pause(true)
	for range 8 {
		s.ask(s.second, "x")
	}
	soon(t, "what the first gateway had is forgotten", func() bool { return s.elsewhere(s.second, "a") == 0 })
	if got := s.second.Status(); got.Redis == nil || got.Redis.At != server.Address() || got.Redis.Reached || len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Why, server.Address()) {
		t.Errorf("status says %+v and %+v of Redis at %s", got.Redis, got.Problems, server.Address())
	}
	if text := "entries known here hold until their leases end"; !strings.Contains(s.log.String(), text) || !strings.Contains(s.log.String(), "redis="+server.Address()) {
		t.Errorf("the log names no address:\n%s", s.log.String())
	}
	if m := s.scrape(s.second); !strings.Contains(m, "pdrouter_peers_behind 1") || !strings.Contains(m, "pdrouter_peers 0") {
		t.Error("the metrics do not say that the others are unknown")
	}
	asked := map[string]bool{}
	for range 4 {
		asked[s.ask(s.second, "x")] = true
	}
	if len(asked) != 2 {
		t.Errorf("asked were %v; want both engines in turn", asked)
	}
	server.Pause(false)
	soon(t, "the second gateway knows the first one's requests again", func() bool { return s.elsewhere(s.second, "a") == 4 })
	soon(t, "Redis is reached", func() bool { return s.second.Status().Redis.Reached })
	server.Kill()
	s.ask(s.second, "x")
	server.Start()
	soon(t, "and after a restart of Redis without data", func() bool { return s.elsewhere(s.second, "a") == 4 })
}
