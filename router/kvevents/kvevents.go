// Package kvevents follows the KV-cache events that engines publish, and so feeds the index of which engine holds which blocks
// (policies/blocks).
//
// It owns one goroutine and one connection for each engine with the key kv_events, begins and ends them as the configuration changes, and
// gives each engine its place in the index (fleet.Engine.SetHolder). Bytes are read by kvevents/batch; what they prove is decided by
// kvevents/stream. Nothing waits for an engine but its own goroutine: one that stalls, floods or sends garbage has no blocks in the index, and
// costs others nothing.
//
// Package router runs it and tells it of configurations. Others ask the index.
package kvevents

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"

	"pdrouter/internal/background"
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// replaysAtOnce bounds the replays of all engines at a time: when a gateway starts, each engine sends all that it has kept.
const replaysAtOnce = 4

// Feed follows the engines of the present configuration. It is safe for concurrent use.
type Feed struct {
	log     *slog.Logger
	index   *blocks.Index
	tasks   *background.Tasks
	current func() *fleet.Fleet
	changed chan struct{} // has room for one: the engines may be others
	replays chan struct{} // has room for replaysAtOnce

	mu       sync.Mutex
	followed map[*fleet.Engine]*follower
}

// New returns a feed that follows nothing yet. current is the fleet of the present configuration.
func New(log *slog.Logger, index *blocks.Index, tasks *background.Tasks, current func() *fleet.Fleet) *Feed {
	return &Feed{log: log, index: index, tasks: tasks, current: current, changed: make(chan struct{}, 1), replays: make(chan struct{}, replaysAtOnce),
		followed: map[*fleet.Engine]*follower{}}
}

// Update has the feed go by the present configuration soon. It never blocks.
func (f *Feed) Update() { background.Notify(f.changed) }

// Run follows engines until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	defer f.keep(func(*fleet.Engine, config.KVEvents) bool { return false })
	for {
		now := f.current()
		f.keep(func(e *fleet.Engine, at config.KVEvents) bool { return now.Engine(e.Name) == e && e.KVEvents() == at })
		for _, e := range now.Engines {
			f.follow(ctx, e)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
	}
}

// keep ends the followers of all other engines, and waits until their sockets are closed.
func (f *Feed) keep(which func(*fleet.Engine, config.KVEvents) bool) {
	f.mu.Lock()
	var ending []*follower
	for e, one := range f.followed {
		if !which(e, one.at) {
			one.stop()
			ending = append(ending, one)
			delete(f.followed, e)
		}
	}
	f.mu.Unlock()
	for _, one := range ending {
		<-one.done
	}
}

// follow begins to follow an engine, if it publishes and is not followed yet.
func (f *Feed) follow(ctx context.Context, e *fleet.Engine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := e.KVEvents()
	if at.Endpoint == "" || f.followed[e] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	one := &follower{feed: f, engine: e, at: at, stop: stop, done: make(chan struct{}), holder: f.index.Join(), seed: maphash.MakeSeed()}
	f.followed[e] = one
	go func() {
		defer close(one.done)
		f.tasks.Keep(ctx, "KV events", func() { one.run(ctx) })
		e.SetHolder(nil)
		f.index.Leave(one.holder)
	}()
}

// Stats is what came of following one engine, since the gateway began to.
type Stats struct {
	Engine    string
	Connected bool
	Live      bool // what the index has of the engine is all that it has reported
	blocks.HolderStats
	Events       uint64  // that were entered
	Gaps         uint64  // losses of batches
	Resets       uint64  // times that all its blocks were forgotten as the events left doubt
	Replays      uint64  // that it was asked for
	DecodeErrors uint64  // batches that could not be read
	Age          float64 // seconds since the last batch; below 0 before the first
}

// Stats returns what is known of every engine that is followed.
func (f *Feed) Stats() []Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Stats, 0, len(f.followed))
	for e, one := range f.followed {
		s := one.read()
		s.Engine, s.HolderStats = e.Name, f.index.Stats(one.holder)
		out = append(out, s)
	}
	return out
}
