// Package shared is what gateways tell each other through Redis: small entries that each have a lease, such as which engine
// holds a response. A Cache is for many keys that few ask for, a Map for few that everybody knows. Neither is a lock or
// a record of truth: an entry may be lost with the Redis that had it, and known a moment later elsewhere than here. internal/gateway
// gives them to the parts that declare what they need. Nothing here waits for Redis but Cache.Get and Cache.Await, for a
// bounded time. Whoever can write to Redis can have entries be lost; where there is a Signer, he cannot make any.
package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/outage"
	"pdrouter/internal/redisdb"
)

const (
	// maxEntries bounds the local copy, and maxWaiting what is to be written.
	maxEntries = 1 << 16
	maxWaiting = 1 << 14
	// maxReads is how many reads may be out at once: whoever asks for keys that are not there must not fill the pool.
	maxReads = 64
	// readWithin bounds the wait for a key that is not known here.
	readWithin = 250 * time.Millisecond
	// awaitWithin bounds the wait of an answer for its entry to be written.
	awaitWithin = 250 * time.Millisecond
	// writeWithin bounds one round of writes, and batch is how many are in one.
	writeWithin = 2 * time.Second
	batch       = 256
	// maxRetryWait is between two tries of a write that fails.
	maxRetryWait = 5 * time.Second
)

// ErrUnknown is the error of a Get that could not ask the other gateways' entries.
var ErrUnknown = errors.New("shared: whether there is such an entry is not known")

// Cache has values under keys. It is safe for concurrent use.
type Cache struct {
	db      redisdb.Client // nil: entries are this process's own
	prefix  string
	log     *slog.Logger
	signing signing
	reads   chan struct{}
	wake    chan struct{} // has room for one: there is something to write

	mu      sync.Mutex
	copy    leased
	waiting map[string]entry         // to be written, the latest of each key
	awaited map[string]chan struct{} // of those: closed once it is written

	failures, dropped, late atomic.Uint64
	behind                  atomic.Bool
	outage                  outage.Outage // Run's
}

// CacheStats is what a Cache has counted.
type CacheStats struct {
	Known    int    // in the local copy
	Waiting  int    // to be written
	Failures uint64 // reads and rounds of writes that failed
	Dropped  uint64 // entries that other gateways will not know: too many were waiting, or there is no key to sign them with
	Late     uint64 // answers that did not wait any longer for their entry to be written
	Refused  uint64 // entries that were ignored because no gateway had signed them so
	Behind   bool   // the last write failed
}

// NewCache returns a cache that is shared under keys that begin with prefix and name, while Run runs. With db nil it is
// this process's own, and Run does nothing. With a signer, which may be nil, what no gateway has signed is ignored.
func NewCache(db redisdb.Client, prefix, name string, signer Signer, log *slog.Logger) *Cache {
	return newCache(db, prefix+":"+name+":", signer, log, maxEntries)
}

func newCache(db redisdb.Client, prefix string, signer Signer, log *slog.Logger, most int) *Cache {
	return &Cache{db: db, prefix: prefix, log: log, signing: signing{signer: signer, log: log}, reads: make(chan struct{}, maxReads),
		wake: make(chan struct{}, 1), copy: newLeased(most), waiting: map[string]entry{}, awaited: map[string]chan struct{}{}}
}

// Put enters an entry for as long as the lease. It is known here at once, and elsewhere a moment later. value is not copied.
func (c *Cache) Put(key string, value []byte, lease time.Duration) {
	now := time.Now()
	it := entry{value: value, until: now.Add(lease), at: now.UnixNano()}
	c.mu.Lock()
	c.copy.put(key, it)
	_, again := c.waiting[key]
	full := c.db != nil && !again && len(c.waiting) >= maxWaiting
	if c.db != nil && !full {
		c.waiting[key] = it
	}
	c.mu.Unlock()
	switch {
	case full:
		c.dropped.Add(1)
	case c.db != nil:
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// Await waits until what was last put under the key is with the other gateways, for no longer than a quarter of a second, and
// not at all while Redis takes nothing: then it is written later.
func (c *Cache) Await(key string) {
	c.mu.Lock()
	if _, ok := c.waiting[key]; !ok {
		c.mu.Unlock()
		return
	}
	written := c.awaited[key]
	if written == nil {
		written = make(chan struct{})
		c.awaited[key] = written
	}
	c.mu.Unlock()
	if c.behind.Load() {
		c.late.Add(1)
		return
	}
	late := time.NewTimer(awaitWithin)
	defer late.Stop()
	select {
	case <-written:
	case <-late.C:
		c.late.Add(1)
	}
}

// Get returns an entry: from the local copy, or, if it is not there, as the other gateways have it, for which it waits no
// longer than a quarter of a second. The value must not be changed. ErrUnknown is wrapped where nobody could be asked.
func (c *Cache) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	now := time.Now()
	c.mu.Lock()
	it, ok := c.copy.get(key, now)
	c.mu.Unlock()
	if ok || c.db == nil {
		return it.value, ok, nil
	}
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	default:
		return nil, false, fmt.Errorf("%w: %d others are being asked for", ErrUnknown, maxReads)
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	pipe := c.db.Pipeline()
	got, left := pipe.Get(ctx, c.prefix+key), pipe.PTTL(ctx, c.prefix+key)
	_, _ = pipe.Exec(ctx) // each command has its own error
	value, err = got.Bytes()
	switch lease := left.Val(); {
	case errors.Is(err, redis.Nil):
		return nil, false, nil
	case err != nil:
		c.failures.Add(1)
		return nil, false, fmt.Errorf("%w: %w", ErrUnknown, err)
	default:
		if it, err = c.signing.check(c.prefix+key, value, now, max(lease, 0)); err != nil {
			c.signing.refuse(c.prefix+key, err)
			return nil, false, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if newer, ok := c.copy.get(key, time.Now()); ok && newer.at > it.at { // put here meanwhile
		return newer.value, true, nil
	}
	c.copy.put(key, it)
	return it.value, true, nil
}

// Run writes what was put until ctx ends, and then, for a moment, what is still to be written. What Redis does not take is
// written once it does, as long as it is not too much.
func (c *Cache) Run(ctx context.Context) error {
	if c.db == nil {
		<-ctx.Done()
		return nil
	}
	for wait := 50 * time.Millisecond; ; {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeWithin)
			defer cancel()
			_ = c.writeAll(last)
			return nil
		case <-c.wake:
		}
		err := c.writeAll(ctx)
		for err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				wait = min(2*wait, maxRetryWait)
				err = c.writeAll(ctx)
			}
		}
		wait = 50 * time.Millisecond
	}
}

// writeAll writes until nothing waits, or a round fails.
func (c *Cache) writeAll(ctx context.Context) error {
	for {
		round := c.take()
		if len(round) == 0 {
			return nil
		}
		failed := c.write(ctx, round)
		if failed == nil {
			c.behind.Store(false)
			c.outage.Over(c.log, "shared: other gateways learn of new entries again", "prefix", c.prefix)
			continue
		}
		c.failures.Add(1)
		c.behind.Store(true)
		c.outage.Failed(c.log, "shared: other gateways do not learn of new entries; requests go on", failed, "prefix", c.prefix)
		return failed
	}
}

// take returns entries that are to be written. They stay among those that wait until write has written them.
func (c *Cache) take() map[string]entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	round := make(map[string]entry, min(len(c.waiting), batch))
	for key, it := range c.waiting {
		if len(round) == batch {
			break
		}
		round[key] = it
	}
	return round
}

func (c *Cache) write(ctx context.Context, round map[string]entry) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	now := time.Now()
	pipe := c.db.Pipeline()
	for key, it := range round {
		value, err := c.signing.sign(c.prefix+key, it)
		if err != nil {
			c.dropped.Add(1)
			c.signing.refuse(c.prefix+key, err)
			continue
		}
		if lease := it.until.Sub(now); lease >= time.Millisecond {
			pipe.Set(ctx, c.prefix+key, value, lease)
		}
	}
	if pipe.Len() > 0 {
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("shared: redis: %w", err)
		}
	}
	c.mu.Lock()
	for key, it := range round {
		if c.waiting[key].until.Equal(it.until) { // else it was put again meanwhile
			delete(c.waiting, key)
			if written := c.awaited[key]; written != nil {
				close(written)
				delete(c.awaited, key)
			}
		}
	}
	c.mu.Unlock()
	return nil
}

// Stats returns what was counted.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CacheStats{Known: c.copy.len(), Waiting: len(c.waiting), Failures: c.failures.Load(), Dropped: c.dropped.Load(), Late: c.late.Load(),
		Refused: c.signing.refused.Load(), Behind: c.behind.Load()}
}
