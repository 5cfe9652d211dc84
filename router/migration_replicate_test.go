package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// TestSharedPromptIsReplicated has conversations begin with one system prompt at one engine, and one with another. What they share is copied to a
// second engine once that is less busy, and conversations that begin there compute nothing else of it.
func TestSharedPromptIsReplicated(t *testing.T) {
	m := newMoversBy(t, planned(t, "default: {split: {min_prompt_tokens: 100000}, decode: session}"), 2, func(c *config.Config, engines map[string]*refengine.Config) {
		uses("replicate")(c, engines)
		for _, e := range engines {
			e.PrefillCost = 500 * time.Microsecond // else it is not worth a move
		}
	})
	system := "you know all of this: " + strings.Repeat("the answer is in the book. ", 20)
	begin := func(name, system string) *talk {
		c := &talk{name: name, messages: []map[string]string{{"role": "system", "content": system}}}
		c.say(name + " asks what is in the book")
		return c
	}
	all := m.config.Models[0].Decode
	m.configureWith(all[:1])
	for i := range 6 {
		m.turn(begin(fmt.Sprintf("client %d", i), system), 8)
	}
	m.turn(begin("another", "you know nothing. "+strings.Repeat("there is no book. ", 20)), 8)
	m.configureWith(all)
	m.WaitWarm()
	m.quiet()
	if got := m.results(); len(got) > 0 {
		t.Fatalf("moves while no engine is busier: %v", got)
	}

	holder := m.Router.Debug().Engine("decode-0")
	holder.AddInFlight(1)
	m.configureWith(all) // it is looked at once
	routertest.Eventually(t, "what they share is copied", func() bool { return m.moved(migration.ForReplica, migration.Moved)["decode-1"] == 1 })
	m.configureWith(all)
	m.quiet()
	holder.AddInFlight(-1)
	got := m.results()
	delete(got, migration.AlreadyThere) // a look while it is moved finds it again
	if got[migration.Moved] != 1 || len(got) != 1 {
		t.Errorf("moves: %v", got)
	}

	before, n := m.engines["decode-1"].Books(), 0
	for i := range 8 {
		if m.turn(begin(fmt.Sprintf("new client %d", i), system), 8) == "decode-1" {
			n++
		}
	}
	after := m.engines["decode-1"].Books()
	if computed := int(after.Computed - before.Computed); n == 0 || computed > n*5*16 {
		t.Errorf("%d conversations have begun, for which %d tokens were computed and %d were cached", n, computed, after.Cached-before.Cached)
	}
	m.freed(0)
}
