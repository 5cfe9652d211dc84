package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdrouter/router"
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
		write(file, fmt.Sprintf("engines: [{name: one, url: %q, key_file: %s}]\n", one.URL, key))
		until(t, "the file is refused", func() bool { _, now, _ := c.sources.stats(); return now[at].Failures > before[at].Failures })
		if p, ok := find(c.sources.engines(), "one"); !ok || p.KeyFile != "" {
			t.Errorf("%s: one is %+v; want what it was", key, p)
		}
		if err := c.sources.drain(t.Context(), "st", i%2 == 0, "me"); err != nil {
			t.Errorf("%s: an administrator is refused: %v", key, err)
		}
		if status, _, why := c.reload(); status != 200 {
			t.Errorf("%s: a reload is refused: %v", key, why)
		}
		l, err := loadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.checkFiles(nil); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: check says %v", key, err)
		}
		known := router.Config{Models: []router.Model{{Name: "m", Engines: []router.Engine{{Name: "st", URL: one.URL, KeyFile: filepath.Join(dir, key)}}}}}
		if _, err := router.New(known, router.Parts{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: the router says %v", key, err)
		}
	}
}
