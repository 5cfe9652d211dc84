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

// TestOtherTenantsConversation has one tenant call its sessions by the names of another's, in every way, and say the same. Neither tenant's turns
// replace what is kept of the other's, though each replaces its own.
func TestOtherTenantsConversation(t *testing.T) {
	m := newMovers(t, 2, func(c *config.Config, _ map[string]*refengine.Config) { c.Migration.Mode = config.MigrationDryRun })
	m.Parts.Clients = tenants{}
	m.setDrained("")
	names := []string{"X-Session-Id", "X-Claude-Code-Session-Id", "X-Session-Affinity", "Session-Id", "Session_id", "X-Dynamo-Session-Id", "prompt_cache_key", "user", ""}
	turn := func(tenant, name, messages string) {
		t.Helper()
		body, headers := `{"model":"tiny","max_tokens":8,"ignore_eos":true,"messages":[`+messages+`]`, []string{"Authorization", tenant}
		switch {
		case strings.Contains(name, "-") || name == "Session_id":
			headers = append(headers, name, "the session")
		case name != "":
			body += fmt.Sprintf(`,%q:"the session"`, name)
		}
		if r := m.Post(routertest.PathChat, body+"}", headers...); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		m.WaitIdle()
	}
	want := 0
	for _, name := range names {
		first := fmt.Sprintf(`{"role":"user","content":"by %s: %s"}`, name, strings.Repeat("what is it? ", 10))
		for _, tenant := range []string{"one", "another"} {
			turn(tenant, name, first)
			turn(tenant, name, first+`,{"role":"assistant","content":"that"},{"role":"user","content":"and then?"}`)
			if want++; m.Router.Stats().Migration.Conversations != want {
				t.Errorf("%d conversations after tenant %s has named one by %q; want %d", m.Router.Stats().Migration.Conversations, tenant, name, want)
			}
		}
	}
	m.drain("decode-0")
	m.drain("decode-1")
	if got := m.resultsOf(want); got[migration.DryRun] != want {
		t.Errorf("moves: %v; want %d", got, want)
	}
}
