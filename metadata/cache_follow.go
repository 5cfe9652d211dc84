package metadata

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// cacheBatch is how many engines are read at once and then shown at once.
const cacheBatch = 64

// bulk is a Store from which many engines can be read at once.
type bulk interface {
	// names returns every engine that may have records.
	names(ctx context.Context) ([]string, error)
	// read returns, for each engine, what is held of it beyond what is known. known may return nil.
	read(ctx context.Context, engines []string, known func(engine string) *copied) []reading
}

// single makes any Store one that can be read in bulk: engine by engine.
type single struct{ Store }

func (s single) names(ctx context.Context) ([]string, error) { return s.List(ctx) }

func (s single) read(ctx context.Context, engines []string, _ func(string) *copied) []reading {
	all := make([]reading, len(engines))
	for i, engine := range engines {
		asked := time.Now()
		recs, err := s.Engine(ctx, engine)
		if err != nil && !errors.Is(err, ErrNotFound) {
			all[i].err = err
			continue
		}
		for _, r := range recs {
			all[i].found = append(all[i].found, found{r, asked.Add(r.Lifetime())})
		}
	}
	return all
}

// Run follows the store until ctx ends, and returns ctx's error.
func (c *Cache) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.watch(ctx) })
	c.note(Change{})
	refresh := time.NewTicker(c.cfg.Refresh)
	defer refresh.Stop()
	failures := 0 // in a row
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
			pause := c.cfg.pause(failures)
			failures++
			c.log.Warn("metadata: cache: read; keeping the last good copy", "err", err, "pause", pause)
			rest(ctx, pause)
			c.note(Change{})
		} else {
			failures = 0
		}
	}
}

// watch hears what the store announces until ctx ends.
func (c *Cache) watch(ctx context.Context) {
	failures := 0 // in a row
	for ctx.Err() == nil {
		err := c.store.Watch(ctx, func(ch Change) {
			if ch.Engine == "" {
				failures = 0
				c.mu.Lock()
				c.stats.Watches++
				c.mu.Unlock()
			}
			c.note(ch)
		})
		if err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.stats.Deaf++
			c.mu.Unlock()
			pause := c.cfg.pause(failures)
			failures++
			c.log.Warn("metadata: watch; trying again", "err", err, "pause", pause)
			rest(ctx, pause)
		}
	}
}

// pause returns how long to rest after a failure that followed so many others: twice as long each time, up to eight
// times Retry, and by chance as little as half of that, so that gateways that lost one store do not come back at once.
func (c CacheConfig) pause(before int) time.Duration {
	d := c.Retry << min(before, 3)
	return d/2 + rand.N(d/2+1)
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
		names, err := c.from.names(listing)
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
	for names := range slices.Chunk(slices.Sorted(maps.Keys(dirty)), cacheBatch) {
		failed, err := c.read(ctx, names, dirty)
		if err != nil {
			c.failed(failed)
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

// read brings the copies of some engines up to date and shows them at once. It returns what could not be read, and
// why the first could not.
func (c *Cache) read(ctx context.Context, names []string, dirty map[string][]Change) (failed map[string][]Change, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Read)
	defer cancel()
	olds := *c.copies.Load() // only Run's goroutine writes
	got := c.from.read(ctx, names, func(name string) *copied { return olds[name] })
	failed = map[string][]Change{}
	news, cloned := olds, false
	now := time.Now()
	records := 0
	for i, name := range names {
		r, old := got[i], olds[name]
		if r.err != nil {
			failed[name] = dirty[name]
			if err == nil {
				err = r.err
			}
			continue
		}
		records += len(r.found)
		if len(r.found) == 0 && len(dirty[name]) == 0 && old.settled(now) {
			continue
		}
		if !cloned {
			news, cloned = maps.Clone(olds), true
		}
		if next := merge(old, r.found, dirty[name], now); next != nil {
			news[name] = next
		} else {
			delete(news, name)
		}
	}
	if cloned {
		c.copies.Store(&news)
	}
	c.mu.Lock()
	c.stats.Reads += uint64(len(names) - len(failed))
	c.stats.Records += uint64(records)
	c.mu.Unlock()
	for _, name := range names {
		if now := news[name].edition(now); now != c.told[name] {
			if c.told[name] = now; now.ranks == 0 {
				delete(c.told, name)
			}
			c.changed.tell(name)
		}
	}
	return failed, err
}
