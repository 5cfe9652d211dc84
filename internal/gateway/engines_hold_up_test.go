package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestEnginesFileHoldsUpNothing has whoever writes a file of engines name a folder, or a pipe, as a key: the file is refused, and
// everything else of the gateway can be changed as before.
func TestEnginesFileHoldsUpNothing(t *testing.T) {
	one := NewFakeServing(t, "one", "127.0.0.1:0")
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
	c := ServeFile(t, path)
	Until(t, "the file is read", func() bool { _, ok := c.engines.Engine("one"); return ok })
	at := fleetview.List{Model: "m", Key: "engines"}
	for i, key := range []string{"keys/..data", "keys/pipe"} {
		before := c.engines.Stats().Files
		write(file, fmt.Sprintf("engines: [{name: one, url: %q, bearer_token_file: %s}]\n", one.URL, key))
		Until(t, "the file is refused", func() bool { return c.engines.Stats().Files[at].Failures > before[at].Failures })
		if p, ok := c.engines.Engine("one"); !ok || p.BearerTokenFile != "" {
			t.Errorf("%s: one is %+v; want what it was", key, p)
		}
		if err := c.engines.Override(t.Context(), overrides.Override{Engine: "st", Drain: []overrides.Drain{overrides.DrainOn, overrides.DrainOff}[i], By: "me"}); err != nil {
			t.Errorf("%s: an administrator is refused: %v", key, err)
		}
		if status, _, why := c.Reload(); status != 200 {
			t.Errorf("%s: a reload is refused: %v", key, why)
		}
		l := Load(t, path)
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
	one := NewFakeServing(t, "one", "127.0.0.1:0")
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
	c := ServeFile(t, path)
	key := filepath.Join(dir, "keys", "there")
	e := config.Engine{Name: "two", URL: one.URL, BearerTokenFile: key}
	if err := c.engines.Override(t.Context(), overrides.Override{Engine: "two", Model: "m", List: "engines", Entry: &e, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if n := c.engines.Stats().Rejected; n != 0 {
		t.Errorf("%d changes could not be taken into use", n)
	}
	if err := c.engines.Override(t.Context(), overrides.Override{Engine: "st", Drain: overrides.DrainOn, By: "me"}); err != nil {
		t.Errorf("an administrator is refused: %v", err)
	}
	if status, _, why := c.Reload(); status != 200 {
		t.Errorf("a reload is refused: %v", why)
	}
	if _, ok := c.engines.Engine("two"); ok {
		t.Error("an engine without its key is used")
	}
	if err := os.WriteFile(key, []byte("k"), 0o600); err != nil {
		t.Fatal(err)
	}
	Until(t, "the key has come", func() bool { _, ok := c.engines.Engine("two"); return ok })
}

// TestEnginesFileGoesByTheKeysOfNow has a reload name a key, which the file of engines then names too.
func TestEnginesFileGoesByTheKeysOfNow(t *testing.T) {
	one := NewFakeServing(t, "one", "127.0.0.1:0")
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
	c := ServeFile(t, path)
	at := fleetview.List{Model: "m", Key: "engines"}
	Until(t, "the file is refused", func() bool { return c.engines.Stats().Files[at].Failures > 0 })
	c.Write(text(", bearer_token_file: named"))
	if status, _, why := c.Reload(); status != 200 {
		t.Fatal(why)
	}
	Until(t, "the file holds", func() bool { _, ok := c.engines.Engine("two"); return ok })
}
