package router

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// TestApplyKeepsEngines changes bounds that concern engines: they go by the new ones, and stay what they are, with their health
// and their pairs.
func TestApplyKeepsEngines(t *testing.T) {
	s := newPool(t, connector.NamePush, 1, 1, nil)
	s.cfg.Timeouts.Health = time.Hour
	g := start(t, s.cfg, Parts{})
	eventually(t, "it is ready", func() bool { st := g.r.Stats(); return st.Ready && st.PairsWarm == 1 })
	next := s.cfg
	next.Limits.Failures, next.Limits.IdlePer, next.Timeouts.Connect = 7, 17, 3*time.Second
	if err := g.r.Apply(next, g.parts); err != nil {
		t.Fatal(err)
	}
	if st := g.r.Stats(); !st.Ready || st.PairsWarm != 1 || st.Engines[0].Share != 1 {
		t.Errorf("ready %v, %d pairs warm, share %v", st.Ready, st.PairsWarm, st.Engines[0].Share)
	}
	e := g.r.Debug().Engine("decode-0")
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
	if err := g.r.Apply(next, g.parts); err != nil {
		t.Fatal(err)
	}
	if g.r.Stats().Engines[1].Up {
		t.Error("an engine that is down is up by a change of limits.idle_engine")
	}
}

// TestApplyReadsNoCredentials has engines come while the files with credentials are gone or half written. Only a reload reads
// them again, and refuses what it cannot use.
func TestApplyReadsNoCredentials(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 2, nil)
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
	cfg, m := s.cfg, s.cfg.Models[0]
	all := m.Engines
	all[0].KeyFile = key
	m.Engines = all[:1]
	cfg.IsolatePrefixCache, cfg.PrefixCacheSecretFile, cfg.Models = true, salt, []config.Model{m}
	g := start(t, cfg, Parts{})
	sealed, e := g.r.Debug().Sealed("t"), g.r.Debug().Engine("decode-0")

	write(salt, "half")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	all[1].KeyFile = key // what is known of the file holds for whoever comes
	m.Engines = all
	cfg.Models = []config.Model{m}
	parts := g.parts
	if err := g.r.Apply(cfg, parts); err != nil {
		t.Fatalf("an engine cannot come: %v", err)
	}
	f := g.r.Debug().Fleet()
	if g.r.Debug().Engine("decode-0") != e || g.r.Debug().Engine("decode-1").Key() != "one" || g.r.Debug().Sealed("t") != sealed {
		t.Error("engines that come change others, or the salts, or have no credential")
	}
	if err := g.r.Reload(cfg, parts); err == nil || !strings.Contains(err.Error(), "key_file") {
		t.Errorf("a reload without the key file: %v", err)
	}
	write(key, "two\n")
	if err := g.r.Reload(cfg, parts); err == nil || !strings.Contains(err.Error(), "prefix_cache_secret_file") {
		t.Errorf("a reload with half a secret: %v", err)
	}
	if g.r.Debug().Fleet() != f {
		t.Error("a reload that was refused has changed something")
	}
	write(salt, strings.Repeat("2", openai.MinSealKey))
	if err := g.r.Reload(cfg, parts); err != nil {
		t.Fatal(err)
	}
	if now := g.r.Debug(); now.Engine("decode-0").Key() != "two" || now.Sealed("t") == sealed {
		t.Error("a reload goes on with what was read before")
	}
}

// TestApplyLastEngine has the only engine come and go: nothing that looks after it minds.
func TestApplyLastEngine(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{})
	none := s.cfg
	none.Growing, none.Models = true, []config.Model{{Name: "tiny", Connector: connector.NameNone}}
	for i := range 200 {
		for _, cfg := range []config.Config{none, s.cfg} {
			if err := g.r.Apply(cfg, g.parts); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
	}
	if r := g.post(pathCompletions, plainBody); r.Status != 200 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestApplyAttendsToTheEnd has an engine go that still has a request: it is looked after until that has ended, and its pairs
// are forgotten at once.
func TestApplyAttendsToTheEnd(t *testing.T) {
	s := newPool(t, connector.NamePush, 1, 2, nil)
	s.cfg.Timeouts.Health = 10 * time.Millisecond
	checks := new(atomic.Int64)
	engine := newFakeAny(t, func(http.ResponseWriter, *http.Request, string) {})
	m := s.cfg.Models[0]
	m.Decode = append([]config.Engine(nil), m.Decode...)
	before := s.cfg
	served := engine.srv.Config.Handler
	engine.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checks.Add(1)
		served.ServeHTTP(w, r)
	})
	m.Decode = append(m.Decode, config.Engine{Name: "goes", URL: engine.srv.URL})
	with := s.cfg
	with.Models = []config.Model{m}
	g := start(t, with, Parts{})
	eventually(t, "pairs are warm", func() bool { return g.r.Stats().PairsWarm >= 2 })
	e := g.r.Debug().Engine("goes")
	e.AddInFlight(1)
	eventually(t, "it is checked", func() bool { return checks.Load() > 0 })
	pair, err := g.r.Debug().Pair(1).Runs()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.r.Apply(before, g.parts); err != nil {
		t.Fatal(err)
	}
	n := checks.Load()
	eventually(t, "it is checked as long as it has a request", func() bool { return checks.Load() > n+5 })
	one := before
	one.Models = []config.Model{before.Models[0]}
	one.Models[0].Decode = before.Models[0].Decode[:1]
	if !g.r.Debug().Knows(pair) {
		t.Fatal("the pair is not known")
	}
	if err := g.r.Apply(one, g.parts); err != nil {
		t.Fatal(err)
	}
	if g.r.Debug().Knows(pair) {
		t.Error("a pair is known of which one engine has gone")
	}
	e.AddInFlight(-1)
	eventually(t, "nobody checks it any more", func() bool {
		n := checks.Load()
		time.Sleep(10 * before.Timeouts.Health)
		return checks.Load() == n
	})
}
