// Package store keeps records in the memory of this process: the store of one gateway, and of tests. Gateways that share a store use
// package redisstore; both pass one conformance suite.
package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pdrouter/metadata"
)

// memorySweep is how often a Memory that is written to looks for generations to forget.
const memorySweep = time.Second

// Memory is a metadata.Store in this process: the embedded default, for one gateway. The zero value is not usable.
type Memory struct {
	mu       sync.Mutex
	engines  map[string]*memoryEngine
	watchers map[int]func(metadata.Change)
	next     int       // key of the next watcher
	swept    time.Time // when fences were last looked through
}

type memoryEngine struct {
	generation uint64
	ranks      map[metadata.Rank]memoryRank
	forget     time.Time // when the fence may go
}

// memoryRank is one record, or after Delete and the end of the lease only when it was published.
type memoryRank struct {
	rec       metadata.Record
	published time.Time
	until     time.Time // end of the lease; zero once deleted
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{engines: map[string]*memoryEngine{}, watchers: map[int]func(metadata.Change){}}
}

// Put implements Store.
func (m *Memory) Put(_ context.Context, rec metadata.Record) error {
	if err := metadata.Storable(rec); err != nil {
		return err
	}
	m.mu.Lock()
	err := m.putLocked(rec, time.Now())
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: %w", rec.Engine, rec.Rank, err)
	}
	m.announce(metadata.Change{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published})
	return nil
}

func (m *Memory) putLocked(rec metadata.Record, now time.Time) error {
	if now.Sub(m.swept) >= memorySweep {
		m.swept = now
		maps.DeleteFunc(m.engines, func(_ string, e *memoryEngine) bool { return now.After(e.forget) })
	}
	e := m.engines[rec.Engine]
	switch {
	case e == nil || rec.Generation > e.generation:
		e = &memoryEngine{generation: rec.Generation, ranks: map[metadata.Rank]memoryRank{}}
		m.engines[rec.Engine] = e
	case rec.Generation < e.generation:
		return &metadata.Superseded{Generation: rec.Generation, Known: e.generation}
	}
	if old, ok := e.ranks[rec.Rank]; ok && !rec.Published.After(old.published) {
		return fmt.Errorf("published at %v; known is %v: %w", rec.Published, old.published, metadata.ErrStale)
	}
	e.ranks[rec.Rank] = memoryRank{rec: rec, published: rec.Published, until: now.Add(rec.Lifetime())}
	e.forget = now.Add(metadata.FenceKept)
	return nil
}

// Engine implements Store.
func (m *Memory) Engine(_ context.Context, engine string) ([]metadata.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.engines[engine]; e != nil {
		if recs := e.live(time.Now()); len(recs) > 0 {
			return recs, nil
		}
	}
	return nil, fmt.Errorf("metadata: engine %.140q: %w", engine, metadata.ErrNotFound)
}

func (e *memoryEngine) live(now time.Time) []metadata.Record {
	var recs []metadata.Record
	for _, r := range e.ranks {
		if now.Before(r.until) {
			recs = append(recs, r.rec)
		}
	}
	metadata.SortRanks(recs)
	return recs
}

// List implements Store.
func (m *Memory) List(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m.engines)) {
		if len(m.engines[name].live(now)) > 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// Delete implements Store.
func (m *Memory) Delete(_ context.Context, inc metadata.Incarnation, rank metadata.Rank) error {
	m.mu.Lock()
	published, err := m.deleteLocked(inc, rank)
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("metadata: engine %.140q rank %v: %w", inc.Engine, rank, err)
	}
	m.announce(metadata.Change{Incarnation: inc, Rank: rank, Deleted: true, Published: published})
	return nil
}

// deleteLocked returns when the deleted record was published.
func (m *Memory) deleteLocked(inc metadata.Incarnation, rank metadata.Rank) (time.Time, error) {
	e := m.engines[inc.Engine]
	if e == nil || e.generation < inc.Generation {
		return time.Time{}, metadata.ErrNotFound
	}
	if e.generation > inc.Generation {
		return time.Time{}, metadata.ErrStale
	}
	r, ok := e.ranks[rank]
	if !ok || !time.Now().Before(r.until) {
		return time.Time{}, metadata.ErrNotFound
	}
	e.ranks[rank] = memoryRank{published: r.published} // a replay of the deleted record stays stale
	return r.published, nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, changed func(metadata.Change)) error {
	m.mu.Lock()
	id := m.next
	m.next++
	m.watchers[id] = changed
	m.mu.Unlock()
	changed(metadata.Change{})
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watchers, id)
	m.mu.Unlock()
	return ctx.Err()
}

func (m *Memory) announce(c metadata.Change) {
	m.mu.Lock()
	watchers := slices.Collect(maps.Values(m.watchers))
	m.mu.Unlock()
	for _, changed := range watchers {
		changed(c)
	}
}
