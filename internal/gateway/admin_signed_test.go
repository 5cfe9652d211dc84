package gateway_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/overrides"
	"pdrouter/internal/redisdb"
	"pdrouter/router/config"
)

// recordsKey is a section records with a key.
func recordsKey(t *testing.T) string {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := keys.Write(filepath.Join(t.TempDir(), "records"), key)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(", records: {key_file: %q, trusted: [%q]}", private, public)
}

// TestAdminIsSigned has somebody who can write to Redis, and has no gateway's key, add an engine and drain another one.
func TestAdminIsSigned(t *testing.T) {
	server, two, another := sharing(t)
	a, b := another(), another()
	a.until("it listens", a.lists("one"))
	a.must("two is", "add", "m", "engines", "two", two.URL)
	b.until("the other knows the new engine", b.lists("two", "up", "admin"))

	db, err := redisdb.Open(redisdb.Config{Address: server.Address()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	evil := config.Engine{Name: "evil", URL: "http://127.0.0.1:1"}
	ends := time.Now().Add(time.Hour).UnixMilli()
	for _, rec := range []overrides.Override{{Engine: "evil", Model: "m", List: "engines", Entry: &evil, At: time.Now().UnixNano()}, {Engine: "one", Drain: overrides.DrainOn, At: time.Now().UnixNano()}} {
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		board := redisdb.Config{}.WithDefaults().Prefix + ":overrides"
		if err := db.HSet(t.Context(), board, rec.Engine, fmt.Sprintf("%d %s", ends, text)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range []*administration{a, b} {
		g.until("both are seen", func() bool { return g.g.RefusedOverrides() >= 2 })
		if g.lists("evil")() || !g.lists("one", "up")() || !g.lists("two", "up")() {
			out, _ := g.engines(auth.ReadScope, "list")
			t.Errorf("somebody else's override holds:\n%s", out)
		}
	}
	b.must("two is", "drain", "two")
	a.until("gateways are heard still", a.lists("two", "drained"))
}
