package router_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// bidirectional has all engines of a gateway pin what they have answered.
func bidirectional(c *config.Config, engines map[string]*refengine.Config) {
	c.Migration.Mode = config.MigrationDisabled
	for _, e := range engines {
		e.Bidirectional, e.PlainNames = true, true
	}
}

// unpinned waits until no engine holds a block, none by its own time, and no engine was told of a request that still ran.
func (m *movers) unpinned() {
	m.t.Helper()
	routertest.Eventually(m.t, "no engine holds a block", func() bool {
		for _, e := range m.engines {
			if e.Books().Held > 0 {
				return false
			}
		}
		return true
	})
	for name, e := range m.engines {
		if b := e.Books(); b.Early > 0 || b.Expired > 0 {
			m.t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestFault79PinnedAnswers: decode pins what it has answered, to a handshake, to whole answers and to streams, and is told that it was read.
func TestFault79PinnedAnswers(t *testing.T) {
	m := newMovers(t, 1, bidirectional)
	routertest.Eventually(t, "decode has shown that it pins", func() bool { return m.pins("decode-0") })
	for i := range 4 {
		c := &talk{name: fmt.Sprint(i), messages: []map[string]string{{"role": "user", "content": strings.Repeat("it is long enough. ", 8)}}}
		m.answered(c, i%2 == 0, i > 1)
	}
	m.unpinned()
	stats := m.Router.Stats()
	freed := uint64(0)
	for _, f := range stats.Reclaimed {
		if f.Ending == "answered" && f.By == "notify_decode" {
			freed = f.Count
		}
	}
	if freed < 5 { // a handshake's too
		t.Errorf("%v; want 5 that were freed", stats.Reclaimed)
	}
	if held := m.leaked("decode-0"); len(held) > 0 {
		t.Errorf("decode is said to hold %v", held)
	}
}

// TestFault79PinnedCounted: what decode pins is counted if it cannot be told.
func TestFault79PinnedCounted(t *testing.T) {
	m := newMovers(t, 1, func(c *config.Config, engines map[string]*refengine.Config) {
		bidirectional(c, engines)
		engines["decode-0"].PlainNames = false
	})
	routertest.Eventually(t, "decode has shown that it pins", func() bool { return m.pins("decode-0") })
	c := &talk{messages: []map[string]string{{"role": "user", "content": strings.Repeat("it is long enough. ", 8)}}}
	m.answered(c, true, false) // its name is not known: a stream does not say it
	routertest.Eventually(t, "its blocks are counted", func() bool { return m.leaked("decode-0")["random_request_ids"] > 0 })
	if m.engines["decode-0"].Books().Held == 0 {
		t.Error("decode pins nothing")
	}
}

// TestFault79PinnedClaims: however many tokens an answer claims to pin, no more are counted than its engine's cache holds.
func TestFault79PinnedClaims(t *testing.T) {
	m := newMovers(t, 1, func(c *config.Config, engines map[string]*refengine.Config) {
		bidirectional(c, engines)
		engines["decode-0"].PinsClaimed = 999_999_999_999_999_999
	})
	m.Parts.Reclaim = nil // so nothing can be freed
	if err := m.Router.Apply(m.config, m.Parts); err != nil {
		t.Fatal(err)
	}
	routertest.Eventually(t, "it is known how much decode's cache holds", func() bool { return m.stats("decode-0").CacheTokens > 0 })
	c := &talk{messages: []map[string]string{{"role": "user", "content": strings.Repeat("it is long enough. ", 8)}}}
	m.answered(c, false, false)
	routertest.Eventually(t, "its blocks are counted", func() bool { return m.leaked("decode-0")["no_agent"] > 0 })
	if n := m.leaked("decode-0")["no_agent"]; n > 2*4096 { // a handshake's too
		t.Errorf("%d blocks are said to be pinned", n)
	}
}

func (m *movers) stats(name string) router.EngineStats {
	all := m.Router.Stats().Engines
	return all[slices.IndexFunc(all, func(e router.EngineStats) bool { return e.Name == name })]
}

func (m *movers) pins(name string) bool             { return m.stats(name).Pins }
func (m *movers) leaked(name string) map[string]int { return m.stats(name).Leaked }

// TestFault79PinnedStreams: many streams that end at once are freed however little may run in the background, and take no place of it.
func TestFault79PinnedStreams(t *testing.T) {
	m := newMovers(t, 1, func(c *config.Config, engines map[string]*refengine.Config) {
		bidirectional(c, engines)
		c.Limits.Background = 1
	})
	routertest.Eventually(t, "decode has shown that it pins", func() bool { return m.pins("decode-0") })
	m.unpinned()
	var streams sync.WaitGroup
	for i := range 12 {
		c := &talk{name: fmt.Sprint(i), messages: []map[string]string{{"role": "user", "content": strings.Repeat("it is long enough. ", 8)}}}
		streams.Go(func() { m.Post(routertest.PathChat, c.body(16, true)) })
	}
	streams.Wait()
	m.unpinned()
	if held := m.leaked("decode-0"); len(held) > 0 {
		t.Errorf("decode is said to hold %v", held)
	}
}
