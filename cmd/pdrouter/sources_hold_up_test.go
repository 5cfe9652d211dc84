package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/overrides"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestEnginesFileHoldsUpNothing has whoever writes a file of engines name a folder, or a pipe, as a key: the file is refused, and
// everything else of the gateway can be changed as before.
func TestEnginesFileHoldsUpNothing(t *testing.T) {
	one := newFakeServing(t, "one", "127.0.0.1:0")
	dir := t.TempDir()
	for _, sub := range []string{"keys", "keys/..data"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "keys", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, path := filepath.Join(dir, "engines.yaml"), filepath.Join(dir, "gateway.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, fmt.Sprintf("engines: [{name: one, url: %q}]\n", one.URL))
	write(path, fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [{name: st, url: %q}], engines_from: {file: %q, every: 100ms, key_dir: keys}}]\n", one.URL, file))
	c := serveFile(t, path)
	until(t, "the file is read", func() bool { _, ok := find(c.sources.engines(), "one"); return ok })
	at := listOf{"m", "engines"}
	for i, key := range []string{"keys/..data", "keys/pipe"} {
		_, before, _ := c.sources.stats()
		write(file, fmt.Sprintf("engines: [{name: one, url: %q, bearer_token_file: %s}]\n", one.URL, key))
		until(t, "the file is refused", func() bool { _, now, _ := c.sources.stats(); return now[at].Failures > before[at].Failures })
		if p, ok := find(c.sources.engines(), "one"); !ok || p.BearerTokenFile != "" {
			t.Errorf("%s: one is %+v; want what it was", key, p)
		}
		if err := c.sources.drain(t.Context(), "st", i%2 == 0, "me"); err != nil {
			t.Errorf("%s: an administrator is refused: %v", key, err)
		}
		if status, _, why := c.reload(); status != 200 {
			t.Errorf("%s: a reload is refused: %v", key, why)
		}
		l, err := configfile.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.CheckFiles(nil); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: check says %v", key, err)
		}
		known := config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "st", URL: one.URL, BearerTokenFile: filepath.Join(dir, key)}}}}}
		if _, err := router.New(known, router.Parts{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: the router says %v", key, err)
		}
	}
}

// TestKeyOfAnotherGatewayHoldsUpNothing has another gateway add an engine whose key is not here: that engine is left out until
// the key is, and everything else can be changed.
func TestKeyOfAnotherGatewayHoldsUpNothing(t *testing.T) {
	one := newFakeServing(t, "one", "127.0.0.1:0")
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gateway.yaml")
	text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [{name: st, url: %q}], engines_from: {file: engines.yaml, key_dir: keys}}]\n", one.URL)
	for path, text := range map[string]string{path: text, filepath.Join(dir, "engines.yaml"): "engines: []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := serveFile(t, path)
	key := filepath.Join(dir, "keys", "there")
	e := config.Engine{Name: "two", URL: one.URL, BearerTokenFile: key}
	now := time.Now().UnixNano()
	b, err := json.Marshal(overrides.Override{Engine: "two", Model: "m", List: "engines", Entry: &e, By: "ann", At: now, Refreshed: now})
	if err != nil {
		t.Fatal(err)
	}
	if !c.sources.overrides.Learn(map[string]string{"two": string(b)}) {
		t.Fatal("nothing was learnt")
	}
	c.sources.refresh(t.Context())
	if _, _, rejects := c.sources.stats(); rejects != 0 {
		t.Errorf("%d changes could not be taken into use", rejects)
	}
	if err := c.sources.drain(t.Context(), "st", true, "me"); err != nil {
		t.Errorf("an administrator is refused: %v", err)
	}
	if status, _, why := c.reload(); status != 200 {
		t.Errorf("a reload is refused: %v", why)
	}
	if _, ok := find(c.sources.engines(), "two"); ok {
		t.Error("an engine without its key is used")
	}
	other := config.Engine{Name: "three", URL: one.URL, BearerTokenFile: key}
	if _, err := c.sources.add(t.Context(), listOf{"m", "engines"}, other, "me"); err == nil || !strings.Contains(err.Error(), "bearer_token_file cannot be read") {
		t.Errorf("an engine whose key is not here is added: %v", err)
	}
	if err := os.WriteFile(key, []byte("k"), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the key has come", func() bool { _, ok := find(c.sources.engines(), "two"); return ok })
}

// TestEnginesFileGoesByTheKeysOfNow has a reload name a key, which the file of engines then names too.
func TestEnginesFileGoesByTheKeysOfNow(t *testing.T) {
	one := newFakeServing(t, "one", "127.0.0.1:0")
	dir := t.TempDir()
	file, path := filepath.Join(dir, "engines.yaml"), filepath.Join(dir, "gateway.yaml")
	text := func(key string) string {
		return fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [{name: st, url: %q%s}], engines_from: {file: %q}}]\n", one.URL, key, file)
	}
	for path, text := range map[string]string{filepath.Join(dir, "named"): "n", file: fmt.Sprintf("engines: [{name: two, url: %q, bearer_token_file: named}]\n", one.URL), path: text("")} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := serveFile(t, path)
	at := listOf{"m", "engines"}
	until(t, "the file is refused", func() bool { _, now, _ := c.sources.stats(); return now[at].Failures > 0 })
	c.write(text(", bearer_token_file: named"))
	if status, _, why := c.reload(); status != 200 {
		t.Fatal(why)
	}
	until(t, "the file holds", func() bool { _, ok := find(c.sources.engines(), "two"); return ok })
}
