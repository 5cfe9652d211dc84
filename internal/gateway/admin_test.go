package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/dnstest"
	"pdrouter/internal/gateway"
	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// administration is a gateway with a listener for administrators.
type administration struct {
	t       *testing.T
	g       *gateway.Gateway
	tokens  map[string]string // files, by scope
	clients string
	admin   string
	path    string // of the configuration
}

// administer starts a gateway that serves model m with what more says of it.
func administer(t *testing.T, model, more string) *administration {
	t.Helper()
	return administerAuth(t, model, more, "")
}

// administerAuth is administer with more in the section auth.
func administerAuth(t *testing.T, model, more, moreAuth string) *administration {
	t.Helper()
	dir := t.TempDir()
	key, _, public := gateway.MakeKey(t, filepath.Join(dir, "keys"))
	a := &administration{t: t, tokens: map[string]string{}, path: filepath.Join(dir, "pdrouter.yaml")}
	for _, scope := range []string{auth.ReadScope, auth.EnginesScope, "other"} {
		grant := auth.Grant{Audience: auth.AdminAudience, Subject: "ann", Scopes: []string{scope}}
		if scope == auth.EnginesScope {
			grant.Scopes = []string{auth.ReadScope, auth.EnginesScope}
		}
		if scope == "other" {
			grant.Audience, grant.Scopes = auth.ClientAudience, nil
		}
		a.tokens[scope] = filepath.Join(dir, scope)
		if err := os.WriteFile(a.tokens[scope], []byte(gateway.Mint(t, key, grant)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\nmodels:\n- %s\nauth: {admins: {keys: [%q], issuer: %s}%s}\ntimeouts: {health: 100ms}\n%s",
		model, public, gateway.Issuer, moreAuth, more)
	err := os.WriteFile(a.path, []byte(text), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if a.g, err = gateway.New(gateway.Load(t, a.path), slog.New(slog.DiscardHandler), gateway.Options{}); err != nil {
		t.Fatal(err)
	}
	gateway.Running(t, a.g)
	a.clients, a.admin = "http://"+a.g.Clients().String(), "http://"+a.g.Admins().String()
	return a
}

// engines asks for something as administrators do, and returns what the gateway says: one line for each engine.
func (a *administration) engines(scope, what string, args ...string) (string, error) {
	c, err := adminapi.NewClient(a.admin, a.tokens[scope], "")
	if err != nil {
		return "", err
	}
	var e adminapi.Engine
	switch ctx := a.t.Context(); what {
	case "list":
		all, err := c.List(ctx)
		var out strings.Builder
		for _, e := range all.Engines {
			fmt.Fprintf(&out, "%s %s %s %d %s by %s\n", e.Model, e.Name, e.State, e.InFlight, e.Source, e.By)
		}
		for _, it := range all.Expired {
			fmt.Fprintf(&out, "%s: %s by %s does not hold any more\n", it.Name, it.Wanted, it.By)
		}
		return out.String(), err
	case "add":
		e, err = c.Add(ctx, args[0], args[1], map[string]string{"name": args[2], "url": args[3]})
	case "add with a key":
		e, err = c.Add(ctx, args[0], args[1], map[string]string{"name": args[2], "url": args[3], "bearer_token_file": args[4]})
	case "drain":
		e, err = c.Drain(ctx, args[0])
	case "undrain":
		e, err = c.Undrain(ctx, args[0])
	case "remove":
		e, err = c.Remove(ctx, args[0], "", false)
	case "remove soon":
		e, err = c.Remove(ctx, args[0], "soon", false)
	case "remove by force":
		e, err = c.Remove(ctx, args[0], "", true)
	}
	return e.Name + " is " + e.State, err
}

// must is engines for what must succeed and print something.
func (a *administration) must(want, what string, names ...string) {
	a.t.Helper()
	if out, err := a.engines(auth.EnginesScope, what, names...); err != nil || !strings.Contains(out, want) {
		a.t.Fatalf("%s %v: %q, %v; want %q", what, names, out, err, want)
	}
}

// complete returns which engine answered.
func (a *administration) complete(prompt string) (int, string) {
	resp, err := http.Post(a.clients+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1}`, prompt)))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// until waits until requests are answered as wanted, or the list of engines says so.
func (a *administration) until(what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			out, err := a.engines(auth.ReadScope, "list")
			a.t.Fatalf("never: %s\n%s %v", what, out, err)
		}
	}
}

func (a *administration) lists(parts ...string) func() bool {
	return func() bool {
		out, err := a.engines(auth.ReadScope, "list")
		for _, line := range strings.Split(out, "\n") {
			all := err == nil
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return true
			}
		}
		return false
	}
}

// TestAdminUnderLoad adds, drains and removes engines while requests run: none is lost, one that is under way ends well.
func TestAdminUnderLoad(t *testing.T) {
	one, two := gateway.NewFakeServing(t, "one", "127.0.0.1:0"), gateway.NewFakeServing(t, "two", "127.0.0.1:0")
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}]}", one.URL), "")
	a.until("the first engine serves", func() bool { status, _ := a.complete("x"); return status == 200 })
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				if status, body := a.complete("x"); status != 200 {
					t.Errorf("a request was lost: %d %s", status, body)
					return
				}
			}
		})
	}
	held := make(chan string, 1)
	go func() { _, body := a.complete("hold"); held <- body }()
	<-one.Held
	a.must("two is", "add", "m", "engines", "two", two.URL)
	a.until("the second engine serves", func() bool { return two.Served.Load() > 3 })
	a.must("one is draining", "drain", "one")
	a.must("one is draining", "drain", "one")
	a.until("the first has only what is held", a.lists("one", "draining", " 1 "))
	before := one.Served.Load()
	a.must("one is removing", "remove", "one")
	for range 20 {
		a.complete("x")
	}
	if n := one.Served.Load(); n != before {
		t.Errorf("%d requests came to an engine that drains", n-before)
	}
	close(one.Release)
	if body := <-held; !strings.Contains(body, `"one"`) {
		t.Errorf("the request that was under way got %s", body)
	}
	a.until("it is gone", a.lists("one", "removed"))
	if _, err := a.g.ReloadNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !a.lists("one", "removed")() || !a.lists("two", "up", "admin")() {
		t.Error("a reload has forgotten what administrators want")
	}
	a.must("one is", "undrain", "one")
	a.until("the first serves again", func() bool { return one.Served.Load() > before+3 })
	a.must("two is", "remove by force", "two")
	a.must("two is removed", "remove", "two")
	stop()
	load.Wait()
}

// TestAddedEngineIsUncheckedFirst adds an engine whose health check is still to be answered.
func TestAddedEngineIsUncheckedFirst(t *testing.T) {
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}]}", one.URL), "")
	a.until("the first engine is up", a.lists("one", "up"))
	answer := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(slow.Close)
	a.must("slow is unchecked", "add", "m", "engines", "slow", slow.URL)
	close(answer)
	a.until("the engine has answered", a.lists("slow", "up"))
}

// TestAdminRefuses tells nobody more than that they may not, and administrators what is wrong.
func TestAdminRefuses(t *testing.T) {
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}]}", one.URL), "")
	a.tokens["none"] = filepath.Join(t.TempDir(), "none")
	if err := os.WriteFile(a.tokens["none"], []byte("x.y.z"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.until("the gateway listens", func() bool { _, err := a.engines(auth.ReadScope, "list"); return err == nil })
	_, none := a.engines("none", "list")
	_, other := a.engines("other", "list")
	if none == nil || other == nil || none.Error() != other.Error() || !strings.Contains(none.Error(), "401") {
		t.Errorf("no token: %v; one for another listener: %v; want both refused alike", none, other)
	}
	for _, c := range []struct {
		scope string
		args  []string
		want  string
	}{
		{auth.ReadScope, []string{"drain", "one"}, "403"},
		{auth.EnginesScope, []string{"drain", "nobody"}, "404: there is no engine"},
		{auth.EnginesScope, []string{"add", "m", "engines", "one", "http://other:1"}, "409: there is an engine one"},
		{auth.EnginesScope, []string{"add", "x", "engines", "n", "http://n:1"}, "404: there is no model"},
		{auth.EnginesScope, []string{"add", "m", "prefill", "n", "http://n:1"}, "400"},
		{auth.EnginesScope, []string{"add", "m", "odd", "n", "http://n:1"}, "404"},
		{auth.EnginesScope, []string{"add", "m", "engines", "n", "file:///etc"}, "400: url is"},
		{auth.EnginesScope, []string{"add with a key", "m", "engines", "n", "http://n:1", "/etc/passwd"}, "400: bearer_token_file"},
		{auth.EnginesScope, []string{"remove soon", "one"}, "400: drain is"},
	} {
		if out, err := a.engines(c.scope, c.args[0], c.args[1:]...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %q, %v; want %q", c.args, out, err, c.want)
		}
	}
	a.must("one is", "add", "m", "engines", "one", one.URL) // the same again
}

// sharing returns a Redis, an engine called two, and what starts one more gateway of those that share that Redis, sign what they
// share, and have an engine called one in their file.
func sharing(t *testing.T) (redis *redistest.Server, two *gateway.FakeServing, another func() *administration) {
	t.Helper()
	redis = redistest.Start(t)
	one, two := gateway.NewFakeServing(t, "one", "127.0.0.1:0"), gateway.NewFakeServing(t, "two", "127.0.0.1:0")
	model := fmt.Sprintf("{name: m, engines: [{name: one, url: %q}]}", one.URL)
	more := fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", redis.Address())
	signed := recordsKey(t)
	return redis, two, func() *administration { return administerAuth(t, model, more, signed) }
}

// TestAdminIsShared has two gateways share what administrators want over a real Redis, also with one that comes later, and
// keep it while Redis is away.
func TestAdminIsShared(t *testing.T) {
	redis, two, another := sharing(t)
	records := metadatatest.RedisOf(t, redisdb.Config{Address: redis.Address()}, nil, redisdb.Config{}.WithDefaults().Prefix)
	metadatatest.Put(t, records, metadatatest.Record("prefill", 1, 1, 0), nil) // engines publish to the same Redis
	a, b := another(), another()
	a.until("it listens", a.lists("one"))
	a.must("one is", "drain", "one")
	a.must("two is", "add", "m", "engines", "two", two.URL)
	b.until("the other knows that one is drained", b.lists("one", "drained"))
	b.until("the other knows the new engine", b.lists("two", "up", "admin"))
	c := another()
	c.until("one that comes later learns it", func() bool { return c.lists("one", "drained")() && c.lists("two", "up")() })
	redis.Kill()
	b.must("two is", "drain", "two")
	if !b.lists("one", "drained")() || !a.lists("two", "up")() {
		t.Error("what was known is lost with Redis")
	}
	redis.Start() // it has nothing any more
	a.until("the others know what was wanted meanwhile", a.lists("two", "drained"))
	c.until("the others know what was wanted meanwhile", c.lists("two", "drained"))
	if !a.lists("one", "drained")() || !b.lists("one", "drained")() {
		t.Error("what was known is lost with what Redis had")
	}
}

// TestSourcesFollowDNSAndFile resolves a name again and again, over real datagrams, and swaps a file by its link.
func TestSourcesFollowDNSAndFile(t *testing.T) {
	server := dnstest.Start(t)
	first := gateway.NewFakeServing(t, "first", "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(first.Listener.Addr().String())
	second := gateway.NewFakeServing(t, "second", "127.0.0.3:"+port)
	server.Set("engines.test", "127.0.0.2", "10.0.0.9")
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "engines.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "engines: [{name: file-a, url: \"http://127.0.0.1:1\"}]\n")
	put("b", "engines: [{name: file-b, url: \"http://127.0.0.1:1\"}]\n")
	put("bad", "engines: [{nam: x}]\n")
	link("a")
	a := administer(t, fmt.Sprintf(`{name: m, engines_from: {dns: "http://engines.test:%s", server: %q, every: 100ms, gone_after: 300ms, allow: [127.0.0.0/8]}}
- {name: n, engines_from: {file: %q, every: 100ms}}`, port, server.Address(), filepath.Join(dir, "engines.yaml")), "")
	name := func(ip string) string { return "engine-" + strings.ReplaceAll(ip, ".", "-") + "-" + port }
	answers := func(who string) func() bool {
		return func() bool { _, body := a.complete("x"); return strings.Contains(body, `"`+who+`"`) }
	}
	a.until("the first serves", answers("first"))
	a.until("the file's engine is there", a.lists("file-a", "file"))
	if a.lists("10-0-0-9")() {
		t.Error("an address that is not allowed is used")
	}
	held := make(chan string, 1)
	go func() { _, body := a.complete("hold"); held <- body }()
	<-first.Held
	server.Set("engines.test", "127.0.0.3")
	a.until("the first leaves", a.lists(name("127.0.0.2"), "leaving", " 1 "))
	a.until("the second serves", answers("second"))
	server.Fail(dnstest.ServFail)
	link("bad")
	close(first.Release)
	if body := <-held; !strings.Contains(body, `"first"`) {
		t.Errorf("the request that was under way got %s", body)
	}
	a.until("the first is gone", func() bool { return !a.lists(name("127.0.0.2"))() })
	asked := server.Asked("engines.test")
	a.until("the name is asked for again", func() bool { return server.Asked("engines.test") > asked+10 })
	if !answers("second")() || !a.lists("file-a")() {
		t.Error("a failure has changed something")
	}
	if status, _ := a.complete("x"); status != 200 || second.Served.Load() == 0 {
		t.Errorf("status %d", status)
	}
	link("b")
	a.until("the file's engine is another", func() bool { return a.lists("file-b")() && !a.lists("file-a")() })
}
