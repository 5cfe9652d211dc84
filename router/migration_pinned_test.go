package router_test

import (
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// pinning has all engines pin what they have answered, and moves read it.
func pinning(c *config.Config, engines map[string]*refengine.Config) {
	bidirectional(c, engines)
	c.Migration.Mode, c.Migration.PinnedFor = config.MigrationEnabled, time.Minute
}

// pinned waits until decode pins the answer of one turn of a conversation for a move, and returns by which engine.
func (m *movers) pinned(c *talk) (by string) {
	m.t.Helper()
	routertest.Eventually(m.t, "it is known how much decode's cache holds", func() bool { return m.stats("decode-0").CacheTokens > 0 && m.stats("decode-1").CacheTokens > 0 })
	c.say(strings.Repeat("it is long enough. ", 20))
	by = m.turn(c, 40)
	routertest.Eventually(m.t, "decode pins its answer", func() bool { return m.Router.Stats().Migration.PinnedBlocks[by] > 20 })
	return by
}

// pinsEnded waits until there is an end of that kind, and until no engine pins anything.
func (m *movers) pinsEnded(want migration.PinEnd) {
	m.t.Helper()
	routertest.Eventually(m.t, "the pin has ended: "+want.String(), func() bool {
		s := m.Router.Stats().Migration
		return s.PinsEnded[want] == 1 && len(s.PinnedBlocks) == 0
	})
	m.unpinned()
}

// TestMoveReadsPinned: what decode pins of an answer is read by the move of a drain, without a request to the engine that drains.
func TestMoveReadsPinned(t *testing.T) {
	m := newMovers(t, 2, pinning)
	c := new(talk)
	from := m.pinned(c)
	before, at := m.engines[from].Books(), m.tokensOf(from)
	m.drain(from)
	if got := m.resultsOf(1); got[migration.Moved] != 1 || len(got) != 1 {
		t.Fatalf("moves: %v", got)
	}
	if after := m.engines[from].Books(); after.Computed != before.Computed || after.Cached != before.Cached {
		t.Errorf("the engine that drains was asked: %+v, before %+v", after, before)
	}
	m.pinsEnded(migration.PinRead)
	moved := m.tokensOf(from).External - at.External
	c.say("and then?")
	if m.turn(c, 8); moved < 400 || m.tokensOf(from).Cached-at.Cached < moved {
		t.Errorf("of %d tokens that were moved %d are used", moved, m.tokensOf(from).Cached-at.Cached)
	}
}

// TestPinnedEnds: what nobody reads is freed when its time is over, when the conversation goes on, when moves are turned off, and when the gateway stops.
func TestPinnedEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		want migration.PinEnd
		end  func(m *movers, c *talk)
	}{
		{"its time is over", migration.PinExpired, func(*movers, *talk) {}},
		{"the conversation goes on", migration.PinReplaced, func(m *movers, c *talk) {
			c.say("and then?")
			m.Post(routertest.PathChat, c.body(8, true), "X-Session-Id", c.name) // a stream does not say what is pinned
		}},
		{"moves are turned off", migration.PinStopped, func(m *movers, _ *talk) {
			m.config.Migration.Mode = config.MigrationDryRun
			if err := m.Router.Apply(m.config, m.Parts); err != nil {
				m.t.Fatal(err)
			}
		}},
		{"the gateway stops", migration.PinStopped, func(m *movers, _ *talk) { m.Stop() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMovers(t, 2, func(c *config.Config, engines map[string]*refengine.Config) {
				pinning(c, engines)
				if tt.want == migration.PinExpired {
					c.Migration.PinnedFor = 2 * time.Second
				}
			})
			c := new(talk)
			m.pinned(c)
			tt.end(m, c)
			m.pinsEnded(tt.want)
		})
	}
}

// TestPinnedReadFails: after a move that was to read what decode pins, and failed, the conversation goes on, what its target may be reading is counted
// until decode frees it, and what the engine pins next is freed at once.
func TestPinnedReadFails(t *testing.T) {
	m := newMovers(t, 2, pinning)
	c := new(talk)
	from := m.pinned(c)
	to := map[string]string{"decode-0": "decode-1", "decode-1": "decode-0"}[from]
	m.engines[to].SetFaults(refengine.Fault{Leg: refengine.ImportLeg, Nth: -1, Do: refengine.Refuse, Status: 500})
	m.drain(from)
	if got := m.resultsOf(1); got[migration.Failed] != 1 || m.Router.Stats().Migration.PinsEnded[migration.PinUnread] != 1 {
		t.Fatalf("moves: %v", got)
	}
	routertest.Eventually(t, "what may be read still is counted", func() bool { return m.leaked(from)["may_read"] == 27 })
	held := m.engines[from].Books().Held
	m.setDrained("none")
	c.say("and then?")
	if e := m.turn(c, 40); e != from {
		t.Errorf("%s serves", e)
	}
	routertest.Eventually(t, "what decode pins next is freed", func() bool { return m.engines[from].Books().Held == held })
	if n := m.Router.Stats().Migration.PinnedBlocks; len(n) > 0 {
		t.Errorf("it is kept: %v", n)
	}
}
