package router_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// TestApplyKeepsEngines changes bounds that concern engines: they go by the new ones, and stay what they are, with their health
// and their pairs.
func TestApplyKeepsEngines(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	s.Config.Timeouts.Health = time.Hour
	g := routertest.Start(t, s.Config, router.Parts{})
	routertest.Eventually(t, "it is ready", func() bool { st := g.Router.Stats(); return st.Ready && st.PairsWarm == 1 })
	s.Decode[0].SetHealth(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // a change has it asked anew, and it would be up by that
	next := s.Config
	next.Limits.Failures, next.Limits.IdlePer, next.Timeouts.Connect = 7, 17, 3*time.Second
	if err := g.Router.Apply(next, g.Parts); err != nil {
		t.Fatal(err)
	}
	if st := g.Router.Stats(); !st.Ready || st.PairsWarm != 1 || st.Engines[0].Share != 1 {
		t.Errorf("ready %v, %d pairs warm, share %v", st.Ready, st.PairsWarm, st.Engines[0].Share)
	}
	e := g.Router.Debug().Engine("decode-0")
	connect, idle := e.Upstream().Limits()
	if idle != 17 || connect != 3*time.Second {
		t.Errorf("%d idle connections, %v to connect", idle, connect)
	}
	for i := range 7 {
		if down := e.Missed(); down != (i == 6) {
			t.Errorf("down at failure %d: %v", i+1, down)
		}
	}
	next.Limits.IdlePer++
	if err := g.Router.Apply(next, g.Parts); err != nil {
		t.Fatal(err)
	}
	if g.Router.Stats().Engines[1].Up {
		t.Error("an engine that is down is up by a change of limits.idle_engine")
	}
}

// TestApplyReadsNoCredentials has engines come while the files with credentials are gone or half written. Only a reload reads
// them again, and refuses what it cannot use.
func TestApplyReadsNoCredentials(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
	dir := t.TempDir()
	salt, key := filepath.Join(dir, "salt"), filepath.Join(dir, "key")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(salt, strings.Repeat("1", openai.MinSealKey))
	write(key, "one\n")
	cfg, m := s.Config, s.Config.Models[0]
	all := m.Engines
	all[0].BearerTokenFile = key
	m.Engines = all[:1]
	cfg.IsolatePrefixCache, cfg.PrefixCacheSecretFile, cfg.Models = true, salt, []config.Model{m}
	g := routertest.Start(t, cfg, router.Parts{})
	sealed, e := g.Router.Debug().Sealed("t"), g.Router.Debug().Engine("decode-0")

	write(salt, "half")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	all[1].BearerTokenFile = key // what is known of the file holds for whoever comes
	m.Engines = all
	cfg.Models = []config.Model{m}
	parts := g.Parts
	if err := g.Router.Apply(cfg, parts); err != nil {
		t.Fatalf("an engine cannot come: %v", err)
	}
	f := g.Router.Debug().Fleet()
	if g.Router.Debug().Engine("decode-0") != e || g.Router.Debug().Engine("decode-1").Key() != "one" || g.Router.Debug().Sealed("t") != sealed {
		t.Error("engines that come change others, or the salts, or have no credential")
	}
	if err := g.Router.Reload(cfg, parts); err == nil || !strings.Contains(err.Error(), "bearer_token_file") {
		t.Errorf("a reload without the key file: %v", err)
	}
	write(key, "two\n")
	if err := g.Router.Reload(cfg, parts); err == nil || !strings.Contains(err.Error(), "prefix_cache_secret_file") {
		t.Errorf("a reload with half a secret: %v", err)
	}
	if g.Router.Debug().Fleet() != f {
		t.Error("a reload that was refused has changed something")
	}
	write(salt, strings.Repeat("2", openai.MinSealKey))
	if err := g.Router.Reload(cfg, parts); err != nil {
		t.Fatal(err)
	}
	if now := g.Router.Debug(); now.Engine("decode-0").Key() != "two" || now.Sealed("t") == sealed {
		t.Error("a reload goes on with what was read before")
	}
}

// TestApplyLastEngine has the only engine come and go: nothing that looks after it minds.
func TestApplyLastEngine(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	none := s.Config
	none.Growing, none.Models = true, []config.Model{{Name: "tiny", Connector: connector.NameNone}}
	for i := range 200 {
		for _, cfg := range []config.Config{none, s.Config} {
			if err := g.Router.Apply(cfg, g.Parts); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
	}
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestApplyAttendsToTheEnd has an engine go that still has a request: it is looked after until that has ended, and its pairs
// are forgotten at once.
func TestApplyAttendsToTheEnd(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 2, nil)
	s.Config.Timeouts.Health = 10 * time.Millisecond
	checks := new(atomic.Int64)
	engine := routertest.NewAnyEngine(t, func(http.ResponseWriter, *http.Request, string) {})
	m := s.Config.Models[0]
	m.Decode = append([]config.Engine(nil), m.Decode...)
	before := s.Config
	served := engine.Server.Config.Handler
	engine.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checks.Add(1)
		served.ServeHTTP(w, r)
	})
	m.Decode = append(m.Decode, config.Engine{Name: "goes", URL: engine.Server.URL})
	with := s.Config
	with.Models = []config.Model{m}
	g := routertest.Start(t, with, router.Parts{})
	routertest.Eventually(t, "pairs are warm", func() bool { return g.Router.Stats().PairsWarm >= 2 })
	e := g.Router.Debug().Engine("goes")
	e.AddInFlight(1)
	routertest.Eventually(t, "it is checked", func() bool { return checks.Load() > 0 })
	pair, err := g.Router.Debug().Pair(1).Runs()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Router.Apply(before, g.Parts); err != nil {
		t.Fatal(err)
	}
	n := checks.Load()
	routertest.Eventually(t, "it is checked as long as it has a request", func() bool { return checks.Load() > n+5 })
	one := before
	one.Models = []config.Model{before.Models[0]}
	one.Models[0].Decode = before.Models[0].Decode[:1]
	if !g.Router.Debug().Knows(pair) {
		t.Fatal("the pair is not known")
	}
	if err := g.Router.Apply(one, g.Parts); err != nil {
		t.Fatal(err)
	}
	if g.Router.Debug().Knows(pair) {
		t.Error("a pair is known of which one engine has gone")
	}
	e.AddInFlight(-1)
	routertest.Eventually(t, "nobody checks it any more", func() bool {
		n := checks.Load()
		time.Sleep(10 * before.Timeouts.Health)
		return checks.Load() == n
	})
}
