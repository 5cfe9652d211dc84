package routertest

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// Reclaimer is the gateway's agent among fake engines. It holds notifications to what makes them safe.
type Reclaimer struct {
	t *testing.T
	s *Pool

	Mu   sync.Mutex
	Told map[string]int // messages by engine and text
	dead map[string]bool

	Silent bool // what is dead does not even refuse
	Looks  int  // at what is dead
}

func (f *Reclaimer) Notify(_ context.Context, to []metadata.Record, message string, times int) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Told[to[0].Engine+" "+message]++
	id, _, _ := strings.Cut(message, ":")
	id = strings.TrimSuffix(strings.TrimPrefix(id, "cmpl-"), "-0")
	c := f.s.Cluster
	c.Mu.Lock()
	defer c.Mu.Unlock()
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
	if c.decode[id] != nil && f.s.Decode[0].UnderWay() > 0 {
		f.t.Errorf("prefill is told %s while decode waits", message)
	}
	delete(c.prefill, id)
	return nil
}

func (f *Reclaimer) Forget(string) {}

// Count is how many messages were sent to engines whose names begin so.
func (f *Reclaimer) Count(prefix string) (n int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for k, v := range f.Told {
		if strings.HasPrefix(k, prefix) {
			n += v
		}
	}
	return n
}

// Died has the engine's agent be gone.
func (f *Reclaimer) Died(engine string) {
	f.Mu.Lock()
	f.dead[engine] = true
	f.Mu.Unlock()
}

// First answers for a fake engine's side channel, as do the methods after it: decode's is at host d, prefill's elsewhere.
func (f *Reclaimer) First(_ context.Context, at fleet.SideChannel) (metadata.Record, error) {
	e := f.s.Prefill[0]
	if at.Host == "d" {
		e = f.s.Decode[0]
	}
	f.Mu.Lock()
	dead, silent := f.dead[e.Name], f.Silent
	if dead {
		f.Looks++
	}
	f.Mu.Unlock()
	switch {
	case dead && silent:
		return metadata.Record{}, context.DeadlineExceeded
	case dead:
		return metadata.Record{}, syscall.ECONNREFUSED
	}
	e.Mu.Lock()
	defer e.Mu.Unlock()
	rec := metadata.Record{Version: metadata.RecordVersion, EngineID: e.ID, Compatibility: "same", Transport: "nixl", Size: at.Size}
	rec.Layout.BlockTokens = 2
	return rec, nil
}

func (f *Reclaimer) All(ctx context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	rec, err := f.First(ctx, at)
	return []metadata.Record{rec}, err
}

func (f *Reclaimer) Known(context.Context, string) []metadata.Record { return nil }

func (f *Reclaimer) Publish(context.Context, []metadata.Record) error { return nil }

func (f *Reclaimer) Withdraw(context.Context, []metadata.Record) error { return nil }

// Reclaiming is a gateway with an agent among one fake prefill and one fake decode engine.
func Reclaiming(t *testing.T, connectorName string, change func(*config.Config)) (*Pool, *Gateway, *Reclaimer) {
	return ReclaimingWith(t, connectorName, true, change)
}

// ReclaimingWith is reclaiming, with an agent or without.
func ReclaimingWith(t *testing.T, connectorName string, agent bool, change func(*config.Config)) (*Pool, *Gateway, *Reclaimer) {
	s, g, f := ReclaimingFrom(t, connectorName, agent, nil, change)
	g.WaitWarm()
	g.WaitIdle()
	Eventually(t, "decode's run is known", func() bool { return g.Router.Debug().Run("decode-0") != "" })
	return s, g, f
}

// ReclaimingFrom is ReclaimingWith, with engines that do wrong from the start.
func ReclaimingFrom(t *testing.T, connectorName string, agent bool, faults map[string][]Fault, change func(*config.Config)) (*Pool, *Gateway, *Reclaimer) {
	s := NewPool(t, connectorName, 1, 1, faults)
	f := &Reclaimer{t: t, s: s, Told: map[string]int{}, dead: map[string]bool{}}
	d := &s.Config.Models[0].Decode[0]
	d.SideChannel, d.RequestIDRandomizationDisabled = "d:1", true
	s.Config.Timeouts.Cleanup = 10 * time.Second
	if change != nil {
		change(&s.Config)
	}
	parts := router.Parts{Planner: FirstUsable{}, Stock: f, Reclaim: f}
	if !agent {
		parts.Reclaim = nil
	}
	return s, Start(t, s.Config, parts), f
}
