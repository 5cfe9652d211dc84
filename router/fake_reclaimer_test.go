package router

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// fakeReclaimer is the gateway's agent among fake engines. It holds notifications to what makes them safe.
type fakeReclaimer struct {
	t *testing.T
	s *pool

	mu   sync.Mutex
	told map[string]int // messages by engine and text
	dead map[string]bool

	silent bool // what is dead does not even refuse
	looks  int  // at what is dead
}

func (f *fakeReclaimer) Notify(_ context.Context, to []metadata.Record, message string, times int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told[to[0].Engine+" "+message]++
	id, _, _ := strings.Cut(message, ":")
	id = strings.TrimSuffix(strings.TrimPrefix(id, "cmpl-"), "-0")
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if strings.HasPrefix(to[0].Engine, "decode") {
		if !f.dead["prefill-0"] && c.lives("id-of-prefill-0") && !c.quietLocked(id) {
			f.t.Errorf("decode is told %s while prefill may write", message)
		}
		if c.unbegun[id] {
			f.t.Errorf("decode is told %s, which it has not begun with", message)
		}
		if times != 2 { // prefill's ranks, of a decode of one
			f.t.Errorf("decode is told %s %d times; want 2", message, times)
		}
		delete(c.decode, id)
		return nil
	}
	if c.decode[id] != nil && f.s.d[0].underWay() > 0 {
		f.t.Errorf("prefill is told %s while decode waits", message)
	}
	delete(c.prefill, id)
	return nil
}

func (f *fakeReclaimer) Forget(string) {}

func (f *fakeReclaimer) count(prefix string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, v := range f.told {
		if strings.HasPrefix(k, prefix) {
			n += v
		}
	}
	return n
}

func (f *fakeReclaimer) died(engine string) {
	f.mu.Lock()
	f.dead[engine] = true
	f.mu.Unlock()
}

// First, and what follows, make it the fake engines' side channels as well: decode's is at host d, prefill's elsewhere.
func (f *fakeReclaimer) First(_ context.Context, at fleet.SideChannel) (metadata.Record, error) {
	e := f.s.p[0]
	if at.Host == "d" {
		e = f.s.d[0]
	}
	f.mu.Lock()
	dead, silent := f.dead[e.name], f.silent
	if dead {
		f.looks++
	}
	f.mu.Unlock()
	switch {
	case dead && silent:
		return metadata.Record{}, context.DeadlineExceeded
	case dead:
		return metadata.Record{}, syscall.ECONNREFUSED
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rec := metadata.Record{Version: metadata.RecordVersion, EngineID: e.id, Compatibility: "same", Transport: "nixl", Size: at.Size}
	rec.Layout.BlockTokens = 2
	return rec, nil
}

func (f *fakeReclaimer) All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	rec, err := f.First(ctx, at)
	return []metadata.Record{rec}, err
}

func (f *fakeReclaimer) Known(context.Context, string) []metadata.Record { return nil }

func (f *fakeReclaimer) Publish(context.Context, []metadata.Record) error { return nil }

func (f *fakeReclaimer) Withdraw(context.Context, []metadata.Record) error { return nil }

// reclaiming is a gateway with an agent among one fake prefill and one fake decode engine.
func reclaiming(t *testing.T, connectorName string, change func(*config.Config)) (*pool, *gateway, *fakeReclaimer) {
	return reclaimingWith(t, connectorName, true, change)
}

// reclaimingWith is reclaiming, with an agent or without.
func reclaimingWith(t *testing.T, connectorName string, agent bool, change func(*config.Config)) (*pool, *gateway, *fakeReclaimer) {
	s, g, f := reclaimingFrom(t, connectorName, agent, nil, change)
	g.warmed()
	g.settled()
	eventually(t, "decode's run is known", func() bool { return g.r.Debug().Run("decode-0") != "" })
	return s, g, f
}

// reclaimingFrom is reclaimingWith, with engines that do wrong from the start.
func reclaimingFrom(t *testing.T, connectorName string, agent bool, faults map[string][]fault, change func(*config.Config)) (*pool, *gateway, *fakeReclaimer) {
	s := newPool(t, connectorName, 1, 1, faults)
	f := &fakeReclaimer{t: t, s: s, told: map[string]int{}, dead: map[string]bool{}}
	d := &s.cfg.Models[0].Decode[0]
	d.SideChannel, d.PlainRequestIDs = "d:1", true
	s.cfg.Timeouts.Ending = 10 * time.Second
	if change != nil {
		change(&s.cfg)
	}
	parts := Parts{Planner: firstUsable{}, Stock: f, Reclaim: f}
	if !agent {
		parts.Reclaim = nil
	}
	return s, start(t, s.cfg, parts), f
}
