package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// uses has a gateway move KV for these reasons alone. New engines get their whole part of the requests at once.
func uses(reasons ...string) func(*config.Config, map[string]*refengine.Config) {
	return func(c *config.Config, _ map[string]*refengine.Config) {
		c.Migration.Uses, c.Health.SlowStart = reasons, new(time.Duration)
	}
}

// talkAll has so many conversations have a turn each, and returns them by who served it.
func (m *movers) talkAll(n int) map[string][]*talk {
	m.t.Helper()
	at := map[string][]*talk{}
	for i := range n {
		c := &talk{name: fmt.Sprintf("client %d", i)}
		c.say(fmt.Sprintf("%d: %s", i, strings.Repeat(fmt.Sprintf("what is number %d? ", i), 12)))
		e := m.turn(c, 20)
		at[e] = append(at[e], c)
	}
	return at
}

// configureWith changes which decode engines there are.
func (m *movers) configureWith(decode []config.Engine) {
	m.t.Helper()
	next := m.config
	next.Models = slices.Clone(next.Models)
	next.Models[0].Decode = decode
	if err := m.Router.Apply(next, m.Parts); err != nil {
		m.t.Fatal(err)
	}
}

// moved counts the moves with a result for a reason, and their targets.
func (m *movers) moved(why migration.Reason, what migration.Result) map[string]int {
	to := map[string]int{}
	for _, e := range m.ended() {
		if e.Reason == why && e.Result == what {
			to[e.To]++
		}
	}
	return to
}

// quiet waits until no move waits or runs.
func (m *movers) quiet() {
	m.t.Helper()
	routertest.Eventually(m.t, "no move waits or runs", func() bool {
		s := m.Router.Stats().Migration
		return s.Waiting+s.Running == 0
	})
}

// TestNewEngineIsWarmed adds an engine. The conversations whose sessions have their home there from then on are copied to it before their next
// turns, which find all but what is new in its cache, by its own counts.
func TestNewEngineIsWarmed(t *testing.T) {
	m := newMovers(t, 3, uses("warm"))
	all := m.config.Models[0].Decode
	m.configureWith(all[:2])
	talks := m.talkAll(24)
	if len(talks["decode-2"]) > 0 {
		t.Fatal("an engine that is not of the configuration serves")
	}
	m.configureWith(all)
	routertest.Eventually(t, "conversations are moved", func() bool { return m.moved(migration.ForWarmth, migration.Moved)["decode-2"] > 0 })
	m.quiet()
	warmed := m.moved(migration.ForWarmth, migration.Moved)
	if got := m.results(); len(warmed) != 1 || len(got) != 1 {
		t.Fatalf("moves: %v, to %v", got, warmed)
	}
	n := 0
	for _, c := range append(talks["decode-0"], talks["decode-1"]...) {
		before := m.engines["decode-2"].Books()
		c.say("and then?")
		if m.turn(c, 8) != "decode-2" {
			continue
		}
		n++
		after := m.engines["decode-2"].Books()
		if lacked := after.External + after.Computed - before.External - before.Computed; lacked > 3*16 { // what is new, and a block
			t.Errorf("%s: %d tokens of the turn were not cached; %d were", c.name, lacked, after.Cached-before.Cached)
		}
	}
	if n == 0 || n > warmed["decode-2"] {
		t.Errorf("%d turns were served by the new engine, %d conversations were copied to it", n, warmed["decode-2"])
	}
	m.freed(0)
}

// TestWarmedEngineDrains: conversations whose engine drains, and which another has already been given, are moved off that one too when it drains.
func TestWarmedEngineDrains(t *testing.T) {
	m := newMovers(t, 3, uses("warm", "drain"))
	m.configureWith(m.config.Models[0].Decode[:2])
	m.talkAll(24)
	m.configureWith(m.config.Models[0].Decode)
	routertest.Eventually(t, "conversations are moved", func() bool { return m.moved(migration.ForWarmth, migration.Moved)["decode-2"] > 0 })
	m.quiet()
	m.drain("decode-0")
	there := m.moved(migration.ForDrain, migration.AlreadyThere)["decode-2"]
	m.drain("decode-2")
	away := 0
	for _, e := range m.ended() {
		if e.Reason == migration.ForDrain && e.Result == migration.Moved && e.From == "decode-2" {
			away++
		}
	}
	if there == 0 || away < there {
		t.Errorf("%d conversations of decode-0 were at decode-2 already, and %d were moved off that: %v", there, away, m.results())
	}
	m.freed(0)
}

// TestRestartedEngineIsWarmed ends an engine and begins it anew. What prefill has of its conversations is copied to it.
func TestRestartedEngineIsWarmed(t *testing.T) {
	m := newMovers(t, 2, uses("warm"))
	own := m.talkAll(12)["decode-0"]
	was := m.engines["decode-0"]
	if err := was.Kill(); err != nil {
		t.Fatal(err)
	}
	m.engines["decode-0"] = refenginetest.RunAt(t, was.Addr, m.made["decode-0"])
	m.Router.Debug().Engine("decode-0").Restarted()
	m.WaitWarm()
	routertest.Eventually(t, "its conversations are copied", func() bool {
		return m.moved(migration.ForWarmth, migration.Moved)["decode-0"] == len(own)
	})
	before := m.engines["decode-0"].Books()
	for _, c := range own {
		c.say("and then?")
		if e := m.turn(c, 8); e != "decode-0" {
			t.Errorf("%s serves a turn", e)
		}
	}
	after := m.engines["decode-0"].Books()
	if cached, external := after.Cached-before.Cached, after.External-before.External; cached < 2*external {
		t.Errorf("%d tokens were cached, %d were not", cached, external)
	}
	m.freed(0)
}

// TestWarmingIsOff: nothing is copied to a new engine unless migration.uses says so, and with dry_run it is only counted.
func TestWarmingIsOff(t *testing.T) {
	for name, change := range map[string]func(*config.Config, map[string]*refengine.Config){
		"by default": nil,
		"dry run": func(c *config.Config, _ map[string]*refengine.Config) {
			c.Migration.Mode, c.Migration.Uses = config.MigrationDryRun, []string{"warm"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMovers(t, 3, change)
			all := m.config.Models[0].Decode
			m.configureWith(all[:2])
			m.talkAll(12)
			m.configureWith(all)
			if change != nil {
				routertest.Eventually(t, "it is counted", func() bool { return m.results()[migration.DryRun] > 0 })
			} else {
				m.WaitWarm()
				m.talkAll(1)
			}
			if got := m.results(); got[migration.Moved] > 0 {
				t.Errorf("moves: %v", got)
			}
		})
	}
}
