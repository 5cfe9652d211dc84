package gateway_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pdrouter/internal/gateway"
	"pdrouter/internal/overrides"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// TestAdminTellsWhatExpired starts a gateway where none has run for long.
func TestAdminTellsWhatExpired(t *testing.T) {
	server := redistest.Start(t)
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	now := time.Now()
	for key, at := range map[string]time.Time{"one": now.Add(-2 * overrides.TrustedFor), "two": now} {
		b, err := json.Marshal(overrides.Override{Engine: key, Drain: overrides.DrainOn, By: "ann", At: at.UnixNano()})
		if err != nil {
			t.Fatal(err)
		}
		board := redisdb.Config{}.WithDefaults().Prefix + ":overrides"
		if got := server.Do("HSET", board, key, fmt.Sprintf("%d %s", now.Add(time.Hour).UnixMilli(), b)); got != "1" {
			t.Fatal(got)
		}
	}
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}, {name: two, url: %q}]}", one.URL, one.URL),
		fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", server.Address()))
	a.until("what was wanted lately holds", a.lists("two", "drained", "by ann"))
	a.until("the configuration holds", a.lists("one", "up"))
	a.until("it is told", a.lists("one: drained by ann", "does not hold any more"))
}
