package gateway_test

import (
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
	"time"

	"pdrouter/auth"
	"pdrouter/internal/gateway"
	"pdrouter/internal/redistest"
)

// limitedGateway is one of two that share a Redis.
type limitedGateway struct {
	*gateway.Gateway
	url string
}

// startLimited starts two gateways with one Redis and the tenants' section given, in front of an engine that answers at
// once, unless the prompt is "hold": then when release is called.
func startLimited(t *testing.T, redis, keys, tenants string) (both [2]limitedGateway, release func()) {
	t.Helper()
	hold := make(chan struct{})
	release = sync.OnceFunc(func() { close(hold) })
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); strings.Contains(string(b), "hold") {
			<-hold
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":5,"completion_tokens":5}}`)
	}))
	t.Cleanup(engine.Close)
	t.Cleanup(release)
	text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [{name: e, url: %q}]}]\n"+
		"auth: {clients: {api_keys_file: %q}}\nmetadata: {store: redis, redis: {address: %q}}\n%s", engine.URL, keys, redis, tenants)
	file := filepath.Join(t.TempDir(), "pdrouter.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range both {
		l := gateway.Load(t, file)
		g, err := gateway.New(l, slog.New(slog.DiscardHandler), gateway.Options{})
		if err != nil {
			t.Fatal(err)
		}
		both[i] = limitedGateway{g, "http://" + g.Clients().String()}
		gateway.Running(t, g)
	}
	return both, release
}

// ask sends one request and returns its status and reason.
func (g limitedGateway) ask(t *testing.T, key, prompt string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, g.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"`+prompt+`","max_tokens":5}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header.Get("X-Pdrouter-Reason")
}

// soon waits long for what must come.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestTwoGatewaysShareLimits has two gateways with one Redis hold one tenant to 60 requests a minute, and another to four
// at once: together, and each for itself while Redis is gone. No client sees an error but 429.
func TestTwoGatewaysShareLimits(t *testing.T) {
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "keys")
	key := func(name string, l auth.Limits) string {
		k, err := auth.AppendAPIKey(file, name, nil, l)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	paced, busy, again := key("paced", auth.Limits{Requests: 60}), key("busy", auth.Limits{}), key("busy", auth.Limits{})
	both, release := startLimited(t, server.Address(), file, "tenants: {default: {concurrent: 4}, named: {paced: {concurrent: 1000}}}\n")

	var held sync.WaitGroup
	for range 4 {
		held.Go(func() {
			if status, reason := both[0].ask(t, busy, "hold"); status != 200 {
				t.Errorf("one of four at once: %d %s", status, reason)
			}
		})
	}
	over := func(g limitedGateway, key, want string) func() bool {
		return func() bool {
			status, reason := g.ask(t, key, "a")
			if status != 200 && (status != 429 || reason != want) {
				t.Errorf("got %d %s; want 200, or 429 %s", status, reason, want)
			}
			return status == 429
		}
	}
	soon(t, "the other gateway knows of four at once, of the tenant's other key", over(both[1], again, "over_limit_concurrent"))
	release()
	held.Wait()
	soon(t, "they have ended", func() bool { return !over(both[1], again, "over_limit_concurrent")() })

	began := time.Now()
	admitted := [2]int{}
	spend := func(i, n int) (refused bool) {
		for range n {
			if over(both[i], paced, "over_limit_requests")() {
				refused = true
			} else {
				admitted[i]++
			}
		}
		return refused
	}
	refilled := func() int { return int(time.Since(began).Seconds()) + 1 }
	if !spend(0, 100) || admitted[0] < 60 || admitted[0] > 60+refilled() {
		t.Fatalf("the first gateway admitted %d of 100; want 60", admitted[0])
	}
	soon(t, "the other gateway knows that nothing is left", func() bool { return spend(1, 1) })
	if admitted[1] >= 60 {
		t.Errorf("they admitted %v; want 60, and what the second one did before it knew", admitted)
	}

	server.Kill()
	soon(t, "both know that they count alone", func() bool {
		spend(0, 1)
		spend(1, 1)
		return both[0].LimitsBehind() && both[1].LimitsBehind()
	})
	before, began := admitted, time.Now()
	spend(0, 50)
	spend(1, 50)
	for i := range admitted {
		if n := admitted[i] - before[i]; n > 1+refilled() {
			t.Errorf("alone, gateway %d admitted %d more; want what was refilled, %d", i, n, refilled())
		}
	}
	server.Start()
	soon(t, "both share again", func() bool {
		spend(0, 1)
		spend(1, 1)
		return !both[0].LimitsBehind() && !both[1].LimitsBehind()
	})
	soon(t, "the tenant is served on", func() bool { return !over(both[0], paced, "over_limit_requests")() })
}
