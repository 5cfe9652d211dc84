// Package cache is a gateway's local copy of a store: it follows what the store announces, reads everything again now and then, and is
// read without waiting. It does not decide which of two records is newer than the store does: a record's own generation and time of
// publication do. The gateway asks it for each request, and the metadata routes answer reads from it.
//
// Read cache.go, then copy.go (what is known of one engine, pure), follow.go, pass.go (one pass over the store), and
// subscribers.go.
package cache

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/field"
	"pdrouter/metadata"
)

// Config says how the local copy follows its store.
type Config struct {
	Refresh time.Duration `yaml:"refresh"` // everything is read again this often, announced or not; default 10s
	Settle  time.Duration `yaml:"settle"`  // announcements are gathered this long before they are followed; default 5ms
	Read    time.Duration `yaml:"read"`    // time for one read, of up to 64 engines; default 2s
	Retry   time.Duration `yaml:"retry"`   // pause after a failed read or a lost subscription, up to 8 times as long when they repeat; default 500ms
}

func (c Config) withDefaults() Config {
	c.Refresh = cmp.Or(c.Refresh, 10*time.Second)
	c.Settle = cmp.Or(c.Settle, 5*time.Millisecond)
	c.Read = cmp.Or(c.Read, 2*time.Second)
	c.Retry = cmp.Or(c.Retry, 500*time.Millisecond)
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"refresh", c.Refresh}, {"settle", c.Settle}, {"read", c.Read}, {"retry", c.Retry}} {
		if f.d < 0 {
			errs = append(errs, field.Errorf(f.name, "is %v; want more than 0", f.d))
		}
	}
	return errors.Join(errs...)
}

// Stats counts what a Cache holds and did.
type Stats struct {
	Engines  int           // engines with a record that has not expired
	Behind   bool          // the last read of the store failed: the copy is the last good one
	Age      time.Duration // since everything was last read; 0 before the first time
	Reads    uint64        // reads of one engine, most of which find nothing new
	Records  uint64        // records that were new: fetched, decoded and checked
	Watches  uint64        // subscriptions to the store's announcements; each after the first followed a loss
	Deaf     uint64        // subscriptions that could not be made, were lost, or did not hear what was announced
	Failures uint64        // reads that failed
}

// Cache is a local copy of a metadata.Store that is read without waiting. It follows the store's announcements and reads
// everything again now and then. What has not changed is not fetched again, and a renewal that says nothing new only when
// half of the lease is over: the times in a record may be those of an earlier renewal. While the store cannot be reached, or
// has lost what it held, each record stays until its lease is over, counted on this process's monotonic clock, whatever the
// time of day. Only a withdrawal, a newer generation or the end of the lease removes a record, and what is gone stays gone.
// It is safe for concurrent use.
type Cache struct {
	store   metadata.Store
	from    metadata.BulkReader // the store again
	cfg     Config
	log     *slog.Logger
	changed subscribers

	copies atomic.Pointer[map[string]*copied] // replaced whole

	write  sync.Mutex        // held to replace copies
	reads  bool              // the store is asked
	gone   []metadata.Change // was withdrawn meanwhile: the answer may have it still
	ends   time.Time         // when expire looks next; zero is not
	ending chan struct{}     // a lease ends sooner than that

	mu      sync.Mutex
	dirty   map[string]bool  // engines to read; "" means everything
	again   map[string]again // what could not be read; all of it is dirty
	wake    chan struct{}
	hearing bool // there is a subscription
	missed  bool // announcements may have been missed that no look at everything has made up for
	apart   bool // the copy has not been whole since subscribers were told that it is
	stats   Stats
	readAll time.Time
}

// New returns an empty local copy of store; Run fills it.
func New(store metadata.Store, cfg Config, log *slog.Logger) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: cache: %w", err)
	}
	from, ok := store.(metadata.BulkReader)
	if !ok {
		from = single{store}
	}
	c := &Cache{store: store, from: from, cfg: cfg.withDefaults(), log: log,
		ending: make(chan struct{}, 1), dirty: map[string]bool{}, again: map[string]again{}, wake: make(chan struct{}, 1), missed: true, apart: true}
	c.copies.Store(&map[string]*copied{})
	return c, nil
}

// Subscribe has f called, after the copy can be read, whenever an engine has appeared, begun a new generation, gained or
// lost a rank, by withdrawal or by the end of its lease, or when what a rank's record says has changed, its times, signature
// and binding aside: never for a renewal alone. f is called with "" when the copy has become whole, at first and after it
// was out of touch with its store. f must not block, may be called by several goroutines at once, and once more while
// cancel is called.
func (c *Cache) Subscribe(f func(engine string)) (cancel func()) { return c.changed.add(f) }

// Engine returns the records of the engine's newest generation in the order of their ranks, and whether there are any.
// It takes no lock and does no I/O. The slice is shared: callers must not change it.
func (c *Cache) Engine(name string) ([]metadata.Record, bool) {
	e := (*c.copies.Load())[name]
	if e == nil {
		return nil, false
	}
	recs := e.live(time.Now())
	return recs, len(recs) > 0
}

// Engines returns the names of the engines that Engine knows, sorted.
func (c *Cache) Engines() []string {
	now := time.Now()
	var names []string
	for name, e := range *c.copies.Load() {
		if len(e.live(now)) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Stats returns what the cache holds and did.
func (c *Cache) Stats() Stats {
	n := len(c.Engines())
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Engines = n
	if !c.readAll.IsZero() {
		s.Age = time.Since(c.readAll)
	}
	return s
}
