package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/dnstest"
	"pdrouter/internal/gateway"
	"pdrouter/internal/redistest"
)

// TestReloadToASourceLosesNoRequest moves engines from the list to a file and back, under load.
func TestReloadToASourceLosesNoRequest(t *testing.T) {
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.yaml")
	_ = os.WriteFile(file, []byte(fmt.Sprintf("engines: [{name: one, url: %q}]\n", one.URL)), 0o600)
	const listen = "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\n"
	static := listen + fmt.Sprintf("models: [{name: m, engines: [{name: one, url: %q}]}]\n", one.URL)
	from := listen + fmt.Sprintf("models: [{name: m, engines_from: {file: %q}}]\n", file)
	path := filepath.Join(dir, "gateway.yaml")
	_ = os.WriteFile(path, []byte(static), 0o600)
	c := gateway.ServeFile(t, path)
	base := "http://" + c.Clients().String()
	ask := func() (int, string) {
		resp, err := http.Post(base+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	for s, _ := ask(); s != 200; s, _ = ask() {
		time.Sleep(10 * time.Millisecond)
	}
	ctx, stop := context.WithCancel(t.Context())
	bad := map[string]int{}
	done := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			s, b := ask()
			n++
			if s != 200 {
				bad[fmt.Sprint(s, " ", b)]++
			}
		}
		done <- n
	}()
	for i := range 6 {
		text := from
		if i%2 == 1 {
			text = static
		}
		c.Write(text)
		if s, _, m := c.Reload(); s != 200 {
			t.Fatal(s, m)
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	n := <-done
	if len(bad) > 0 {
		t.Errorf("of %d requests lost %v", n, bad)
	}
}

// TestTighterAllowHoldsAtOnce forbids the only address that DNS has.
func TestTighterAllowHoldsAtOnce(t *testing.T) {
	server := dnstest.Start(t)
	bad := gateway.NewFakeServing(t, "bad", "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(bad.Listener.Addr().String())
	server.Set("engines.test", "127.0.0.2")
	const listen = "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\n"
	text := func(allow string) string {
		return listen + fmt.Sprintf("models: [{name: m, engines_from: {dns: \"http://engines.test:%s\", server: %q, every: 100ms, gone_after: 300ms, max_stale: 1s%s}}]\n", port, server.Address(), allow)
	}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	_ = os.WriteFile(path, []byte(text("")), 0o600)
	c := gateway.ServeFile(t, path)
	ask := func() int {
		resp, err := http.Post("http://"+c.Clients().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for ask() != 200 {
		time.Sleep(10 * time.Millisecond)
	}
	c.Write(text(", allow: [10.0.0.0/8]"))
	if s, ch, m := c.Reload(); s != 200 {
		t.Fatal(s, ch, m)
	}
	gateway.Until(t, "what is not allowed any more gets nothing", func() bool {
		n := bad.Served.Load()
		return ask() != 200 && bad.Served.Load() == n
	})
}

// TestTighterAllowIsNoFreshStart allows less while DNS is away: what was found before holds no longer than without that.
func TestTighterAllowIsNoFreshStart(t *testing.T) {
	server := dnstest.Start(t)
	one := gateway.NewFakeServing(t, "one", "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(one.Listener.Addr().String())
	server.Set("engines.test", "127.0.0.2", "127.0.0.3")
	model := fmt.Sprintf(`{name: m, engines_from: {dns: "http://engines.test:%s", server: %q, every: 100ms, max_stale: 1s}}`, port, server.Address())
	a := administer(t, model, "")
	a.until("it serves", func() bool { status, _ := a.complete("x"); return status == 200 })
	server.Fail(dnstest.ServFail)
	path := a.path
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "max_stale: 1s", "max_stale: 1s, allow: [127.0.0.2/32]", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.g.ReloadNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.until("what is not allowed any more is gone", func() bool { return !a.lists("127-0-0-3")() })
	a.until("the last good answer is too old", func() bool { return !a.lists("127-0-0-2")() })
	server.Fail(0)
	a.until("it is used again", a.lists("127-0-0-2", "up"))
}

// TestStartKnowsWhatWasWanted starts gateways where an engine has been removed by way of another one.
func TestStartKnowsWhatWasWanted(t *testing.T) {
	redis := redistest.Start(t)
	one, two := gateway.NewFakeServing(t, "one", "127.0.0.1:0"), gateway.NewFakeServing(t, "two", "127.0.0.1:0")
	model := fmt.Sprintf("{name: m, engines: [{name: one, url: %q}, {name: two, url: %q}]}", one.URL, two.URL)
	more := fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", redis.Address())
	a := administer(t, model, more)
	a.until("up", a.lists("one", "up"))
	a.must("one is", "remove by force", "one")
	b := administer(t, model, more)
	b.until("the others know", b.lists("one", "removed"))
	n := one.Served.Load()
	for range 2 {
		b := administer(t, model, more)
		for range 20 {
			b.complete("x")
		}
		if one.Served.Load() > n {
			t.Error("a gateway that was started anew gave requests to an engine that was removed")
		}
	}
}
