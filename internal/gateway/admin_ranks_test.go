package gateway_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/gateway"
)

// TestAdminSumsRanks: an engine with data-parallel ranks is told as one, and is removed when the last of them has no request.
func TestAdminSumsRanks(t *testing.T) {
	one, two := gateway.NewFakeServing(t, "one", "127.0.0.1:0"), gateway.NewFakeServing(t, "two", "127.0.0.1:0")
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q, data_parallel: 2}, {name: two, url: %q, drain: true}]}", one.URL, two.URL), "")
	a.until("it serves", func() bool { status, _ := a.complete("x"); return status == 200 })
	held := make(chan string, 1)
	go func() { _, body := a.complete("hold"); held <- body }()
	<-one.Held
	a.until("it is up and has a request", a.lists("one", "up", " 1 "))
	a.must("one is removing", "remove", "one")
	close(one.Release)
	if body := <-held; !strings.Contains(body, `"one"`) {
		t.Errorf("the request that was under way got %s", body)
	}
	a.until("it is gone", a.lists("one", "removed"))
}

// TestAdminWithoutKeyFiles: a key file that is gone keeps nobody from draining an engine. A reload says which it is.
func TestAdminWithoutKeyFiles(t *testing.T) {
	one, two := gateway.NewFakeServing(t, "one", "127.0.0.1:0"), gateway.NewFakeServing(t, "two", "127.0.0.1:0")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q, bearer_token_file: %q}, {name: two, url: %q}]}", one.URL, key, two.URL), "")
	a.until("both are up", a.lists("two", "up"))
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	a.must("two is", "drain", "two")
	if _, err := a.g.ReloadNow(t.Context()); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("a reload without the file: %v", err)
	}
}
