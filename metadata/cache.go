package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// CacheConfig says how the local copy follows its store.
type CacheConfig struct {
	Refresh time.Duration `yaml:"refresh"` // everything is read again this often, announced or not; default 10s
	Settle  time.Duration `yaml:"settle"`  // announcements are gathered this long before they are followed; default 5ms
	Read    time.Duration `yaml:"read"`    // time for reading one engine; default 2s
	Retry   time.Duration `yaml:"retry"`   // pause after a failed read or a lost subscription; default 500ms
}

func (c CacheConfig) withDefaults() CacheConfig {
	if c.Refresh == 0 {
		c.Refresh = 10 * time.Second
	}
	if c.Settle == 0 {
		c.Settle = 5 * time.Millisecond
	}
	if c.Read == 0 {
		c.Read = 2 * time.Second
	}
	if c.Retry == 0 {
		c.Retry = 500 * time.Millisecond
	}
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c CacheConfig) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"refresh", c.Refresh}, {"settle", c.Settle}, {"read", c.Read}, {"retry", c.Retry}} {
		if f.d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v; want more than 0", f.name, f.d))
		}
	}
	return errors.Join(errs...)
}

// CacheStats counts what a Cache holds and did.
type CacheStats struct {
	Engines  int           // engines with a record that has not expired
	Behind   bool          // the last read of the store failed: the copy is the last good one
	Age      time.Duration // since everything was last read; 0 before the first time
	Reads    uint64        // reads of one engine
	Failures uint64        // reads that failed for another reason than ErrNotFound
}

// Cache is a local copy of a Store that is read without waiting. It follows the store's announcements and reads
// everything again now and then. While the store cannot be reached, or has lost what it held, each record stays until
// its lease, counted from when this process first saw it, is over. Only a withdrawal, a newer generation or the end of
// the lease removes a record. It is safe for concurrent use.
type Cache struct {
	store   Store
	cfg     CacheConfig
	log     *slog.Logger
	changed func(engine string)

	copies atomic.Pointer[map[string]*copied] // replaced whole
	told   map[string]edition                 // what changed was told of; only Run's goroutine

	mu      sync.Mutex
	dirty   map[string][]Change // engine → withdrawals to apply; "" means everything
	wake    chan struct{}
	stats   CacheStats
	readAll time.Time
}

// copied is what is known of one engine. It is never changed.
type copied struct {
	generation uint64
	recs       []Record    // in the order of their ranks
	until      []time.Time // ends of their leases
	first      time.Time   // the earliest of until: before it, recs can be handed out as they are
	fence      time.Time   // until when the generation is remembered
}

// NewCache returns an empty local copy of store; Run fills it. changed, if not nil, is called when an engine has
// appeared, begun a new generation, got or lost a rank, or gone; it must not block.
func NewCache(store Store, cfg CacheConfig, changed func(engine string), log *slog.Logger) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: cache: %w", err)
	}
	if changed == nil {
		changed = func(string) {}
	}
	c := &Cache{store: store, cfg: cfg.withDefaults(), log: log, changed: changed,
		told: map[string]edition{}, dirty: map[string][]Change{}, wake: make(chan struct{}, 1)}
	c.copies.Store(&map[string]*copied{})
	return c, nil
}

// Engine returns the records of the engine's newest generation in the order of their ranks, and whether there are any.
// It takes no lock and does no I/O. The slice is shared: callers must not change it.
func (c *Cache) Engine(name string) ([]Record, bool) {
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

func (e *copied) live(now time.Time) []Record {
	if now.Before(e.first) {
		return e.recs
	}
	var recs []Record
	for i := range e.recs {
		if now.Before(e.until[i]) {
			recs = append(recs, e.recs[i])
		}
	}
	return recs
}

// Stats returns what the cache holds and did.
func (c *Cache) Stats() CacheStats {
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

// Run follows the store until ctx ends, and returns ctx's error.
func (c *Cache) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		for ctx.Err() == nil {
			if err := c.store.Watch(ctx, c.note); err != nil && ctx.Err() == nil {
				c.log.Warn("metadata: watch; trying again", "err", err, "pause", c.cfg.Retry)
				rest(ctx, c.cfg.Retry)
			}
		}
	})
	c.note(Change{})
	refresh := time.NewTicker(c.cfg.Refresh)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-refresh.C:
			c.note(Change{})
		case <-c.wake:
		}
		rest(ctx, c.cfg.Settle)
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("metadata: cache: read; keeping the last good copy", "err", err)
			rest(ctx, c.cfg.Retry)
			c.note(Change{})
		}
	}
}

// rest sleeps for d or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// note remembers that something is to be read.
func (c *Cache) note(ch Change) {
	c.mu.Lock()
	gone := c.dirty[ch.Engine]
	if ch.Deleted {
		gone = append(gone, ch)
	}
	c.dirty[ch.Engine] = gone
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow reads what was noted. What could not be read stays as it is.
func (c *Cache) follow(ctx context.Context) error {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[string][]Change{}
	c.mu.Unlock()
	_, all := dirty[""]
	delete(dirty, "")
	if all {
		listing, cancel := context.WithTimeout(ctx, c.cfg.Read)
		names, err := c.store.List(listing)
		cancel()
		if err != nil {
			c.failed(dirty)
			return err
		}
		for _, name := range append(names, slices.Collect(maps.Keys(*c.copies.Load()))...) {
			if _, noted := dirty[name]; !noted { // what was noted may be a withdrawal
				dirty[name] = nil
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(dirty)) {
		if err := c.read(ctx, name, dirty[name]); err != nil {
			c.failed(map[string][]Change{name: dirty[name]})
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Behind = false
	if all {
		c.readAll = time.Now()
	}
	return nil
}

// failed notes again what could not be read. Withdrawals were applied or will be.
func (c *Cache) failed(dirty map[string][]Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Behind = true
	c.stats.Failures++
	for name, gone := range dirty {
		c.dirty[name] = append(c.dirty[name], gone...)
	}
}

// read brings one engine's copy up to date.
func (c *Cache) read(ctx context.Context, name string, gone []Change) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Read)
	defer cancel()
	recs, err := c.store.Engine(ctx, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	old := (*c.copies.Load())[name]
	now := time.Now()
	next := merge(old, recs, gone, now)
	copies := maps.Clone(*c.copies.Load()) // only Run's goroutine writes
	if next == nil {
		delete(copies, name)
	} else {
		copies[name] = next
	}
	c.copies.Store(&copies)
	c.mu.Lock()
	c.stats.Reads++
	c.mu.Unlock()
	if now := next.edition(now); now != c.told[name] {
		if c.told[name] = now; now.ranks == 0 {
			delete(c.told, name)
		}
		c.changed(name)
	}
	return nil
}

// edition is of which run an engine's records are, and of how many ranks; zero if there are none.
type edition struct {
	generation uint64
	ranks      int
}

func (e *copied) edition(now time.Time) edition {
	if e == nil || len(e.live(now)) == 0 {
		return edition{}
	}
	return edition{e.generation, len(e.live(now))}
}

// merge returns what is known after the store held recs, or nil if that is nothing. It is a pure function.
func merge(old *copied, recs []Record, gone []Change, now time.Time) *copied {
	next := &copied{fence: now.Add(fenceKept)}
	if old != nil {
		next.generation = old.generation
		if len(recs) == 0 {
			next.fence = old.fence
		}
	}
	for _, r := range recs {
		next.generation = max(next.generation, r.Generation)
	}
	type held struct {
		rec   Record
		until time.Time
	}
	ranks := map[Rank]held{}
	if old != nil && old.generation == next.generation {
		for i, r := range old.recs {
			withdrawn := slices.ContainsFunc(gone, func(g Change) bool { return g.Rank == r.Rank && g.Incarnation == r.Incarnation })
			if !withdrawn && now.Before(old.until[i]) {
				ranks[r.Rank] = held{r, old.until[i]}
			}
		}
	}
	for _, r := range recs {
		h, ok := ranks[r.Rank]
		if r.Generation == next.generation && (!ok || r.Published.After(h.rec.Published)) {
			ranks[r.Rank] = held{r, now.Add(r.Lifetime())}
		}
	}
	for _, rank := range slices.SortedFunc(maps.Keys(ranks), Rank.compare) {
		h := ranks[rank]
		next.recs, next.until = append(next.recs, h.rec), append(next.until, h.until)
		if next.first.IsZero() || h.until.Before(next.first) {
			next.first = h.until
		}
	}
	if len(next.recs) == 0 && now.After(next.fence) {
		return nil
	}
	return next
}
