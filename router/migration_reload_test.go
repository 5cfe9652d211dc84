package router_test

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// TestMigrationModeIsReloaded changes migration.mode while an engine drains: dry_run moves nothing, enabled moves what the engine has from then on,
// and dry_run again drops what still waits.
func TestMigrationModeIsReloaded(t *testing.T) {
	m := newMovers(t, 2, func(c *config.Config, _ map[string]*refengine.Config) { c.Migration.Mode = config.MigrationDryRun })
	n := 0
	for i := 0; n < 6; i++ {
		c := &talk{name: fmt.Sprintf("session %d", i)}
		c.say(fmt.Sprintf("%d: %s", i, strings.Repeat(fmt.Sprintf("what is number %d? ", i), 20)))
		if m.turn(c, 40) == "decode-0" {
			n++
		}
	}
	m.drain("decode-0")
	if got := m.resultsOf(6); got[migration.DryRun] != 6 || len(got) != 1 {
		t.Fatalf("with dry_run: %v", got)
	}

	m.config.Migration.Mode = config.MigrationEnabled
	m.config.Migration.TokensPerSecond = 1 // one move, and the others wait
	m.setDrained("decode-0")
	routertest.Eventually(t, "a conversation is moved", func() bool { return m.results()[migration.Moved] > 0 })
	if left := m.Router.MovesLeft("decode-0"); left == 0 {
		t.Fatal("nothing waits")
	}

	m.config.Migration.Mode = config.MigrationDryRun
	m.setDrained("decode-0")
	routertest.Eventually(t, "nothing waits with dry_run", func() bool { return m.Router.MovesLeft("decode-0") == 0 })
	if got := m.results(); got[migration.Moved] >= 6 {
		t.Errorf("with dry_run again: %v", got)
	}
	m.freed(0)
}
