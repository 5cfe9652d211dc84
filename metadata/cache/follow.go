package cache

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"pdrouter/internal/background"
	"pdrouter/internal/outage"
	"pdrouter/metadata"
)

// cacheBatch is how many engines are read at once and then shown at once.
const cacheBatch = 64

// single makes any Store one that can be read in bulk: engine by engine.
type single struct{ metadata.Store }

func (s single) Names(ctx context.Context) ([]string, error) { return s.List(ctx) }

func (s single) Read(ctx context.Context, engines []string, known func(string) metadata.Known) []metadata.Reading {
	all := make([]metadata.Reading, len(engines))
	for i, engine := range engines {
		asked := time.Now()
		recs, err := s.Engine(ctx, engine)
		if err != nil && !errors.Is(err, metadata.ErrNotFound) {
			all[i].Err = err
			continue
		}
		old := known(engine)
		for _, r := range recs {
			if !old.Knows(r.Generation, r.Rank, r.Published, "", asked) {
				all[i].Found = append(all[i].Found, metadata.Found{Record: r, Until: asked.Add(r.Lifetime()), Content: r.Content()})
			}
		}
	}
	return all
}

// Run follows the store until ctx ends, and returns ctx's error.
func (c *Cache) Run(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { c.watch(ctx) })
	others.Go(func() { c.expire(ctx) })
	c.note(metadata.Change{})
	refresh := time.NewTicker(c.cfg.Refresh)
	defer refresh.Stop()
	retry := time.NewTimer(c.cfg.Refresh)
	defer retry.Stop()
	var out outage.Outage
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-refresh.C:
			c.note(metadata.Change{})
		case <-retry.C:
		case <-c.wake:
		}
		background.Sleep(ctx, c.cfg.Settle)
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			out.Failed(c.log, "metadata: cache: read; requests go on by the last good copy until its leases end", err)
		}
		next, waiting := c.waiting()
		if !waiting {
			out.Over(c.log, "metadata: cache: read: over")
			next = time.Now().Add(c.cfg.Refresh)
		}
		retry.Reset(time.Until(next))
	}
}

// watch hears what the store announces until ctx ends.
func (c *Cache) watch(ctx context.Context) {
	failures := 0 // in a row
	var out outage.Outage
	for ctx.Err() == nil {
		err := c.store.Watch(ctx, func(ch metadata.Change) {
			if ch.Engine == "" {
				failures = 0
				out.Over(c.log, "metadata: watch: over")
				c.mu.Lock()
				c.hearing = true
				c.stats.Watches++
				c.mu.Unlock()
			}
			c.note(ch)
		})
		if err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.hearing, c.missed, c.apart = false, true, true
			c.stats.Deaf++
			c.mu.Unlock()
			out.Failed(c.log, "metadata: watch; trying again", err)
			background.Sleep(ctx, c.cfg.pause(failures))
			failures++
		}
	}
}

// pause returns how long to rest after a failure that followed so many others: twice as long each time, up to eight
// times Retry, and by chance as little as half of that, so that gateways that lost one store do not come back at once.
func (c Config) pause(before int) time.Duration {
	d := c.Retry << min(before, 3)
	return d/2 + rand.N(d/2+1)
}

// note remembers what to read. A withdrawal counts at once, also while nothing can be read.
func (c *Cache) note(ch metadata.Change) {
	old := (*c.copies.Load())[ch.Engine]
	switch {
	case ch.Engine == "":
	case ch.Deleted:
		c.update([]string{ch.Engine}, func(_ int, old *copied, now time.Time) *copied {
			if c.reads {
				c.gone = append(c.gone, ch)
			}
			if old == nil {
				return nil
			}
			return merge(old, nil, []metadata.Change{ch}, now)
		})
	case !ch.Published.IsZero() && old.Knows(ch.Generation, ch.Rank, ch.Published, ch.Content, time.Now()):
		return
	}
	c.mu.Lock()
	c.dirty[ch.Engine] = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow reads what was noted and whose time has come. What could not be read stays as it is, and is read again after a
// pause, while others are read on.
func (c *Cache) follow(ctx context.Context) error {
	p := c.begin()
	var errs []error
	if p.all {
		listing, cancel := context.WithTimeout(ctx, c.cfg.Read)
		names, err := c.from.Names(listing)
		cancel()
		if err != nil { // what was noted is read all the same
			p.failed[""] = true
			errs = append(errs, err)
		} else {
			p.add(names)
			p.add(slices.Collect(maps.Keys(*c.copies.Load())))
		}
	}
	for _, names := range [][]string{slices.Sorted(maps.Keys(p.fresh)), slices.Collect(maps.Keys(p.again))} {
		for len(names) > 0 {
			some := names[:min(cacheBatch, len(names))]
			names = names[len(some):]
			failed, err := c.read(ctx, some)
			if err != nil {
				errs = append(errs, err)
			}
			if len(failed) == len(some) { // the store does not answer: do not ask for the others one by one
				failed, names = append(failed, names...), nil
			}
			for _, name := range failed {
				p.failed[name] = true
			}
		}
	}
	c.end(p)
	return errors.Join(errs...)
}

// read brings the copies of some engines up to date and shows them at once. It returns what could not be read, and
// why the first could not.
func (c *Cache) read(ctx context.Context, names []string) (failed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Read)
	defer cancel()
	c.reading(true)
	defer c.reading(false)
	copies := *c.copies.Load()
	got := c.from.Read(ctx, names, func(name string) metadata.Known { return copies[name] })
	records := 0
	for i, r := range got {
		records += len(r.Found)
		if r.Err != nil {
			failed = append(failed, names[i])
			if err == nil {
				err = r.Err
			}
		}
	}
	c.mu.Lock()
	c.stats.Reads += uint64(len(names) - len(failed))
	c.stats.Records += uint64(records)
	c.mu.Unlock()
	c.update(names, func(i int, old *copied, now time.Time) *copied {
		r := got[i]
		if r.Err != nil || len(r.Found) == 0 && len(r.Gone) == 0 && old.settled(now) {
			return old
		}
		e := merge(old, foundIn(r.Found), r.Gone, now)
		if slices.ContainsFunc(c.gone, e.Holds) {
			e = merge(e, nil, c.gone, now)
		}
		return e
	})
	return failed, err
}

// reading notes that the store is asked, or is not any more.
func (c *Cache) reading(is bool) {
	c.write.Lock()
	defer c.write.Unlock()
	c.reads, c.gone = is, nil
}

// update shows new copies of some engines at once, and tells of those that say something else.
func (c *Cache) update(names []string, next func(i int, old *copied, now time.Time) *copied) {
	c.write.Lock()
	now := time.Now()
	olds := *c.copies.Load()
	news, cloned, sooner := olds, false, false
	var changed []string
	for i, name := range names {
		old := olds[name]
		e := next(i, old, now)
		if e == old {
			continue
		}
		if !cloned {
			news, cloned = maps.Clone(olds), true
		}
		if e == nil {
			delete(news, name)
		} else {
			news[name] = e
			sooner = sooner || len(e.recs) > 0 && (c.ends.IsZero() || e.first.Before(c.ends))
		}
		if !old.sameContent(e) {
			changed = append(changed, name)
		}
	}
	if cloned {
		c.copies.Store(&news)
	}
	c.write.Unlock()
	if sooner {
		select {
		case c.ending <- struct{}{}:
		default:
		}
	}
	c.changed.tell(changed...)
}

// expire takes records away when their leases end, whether the store can be reached or not, until ctx ends.
func (c *Cache) expire(ctx context.Context) {
	for ctx.Err() == nil {
		var ended []string
		var next time.Time
		c.write.Lock()
		now := time.Now()
		for name, e := range *c.copies.Load() {
			switch {
			case len(e.recs) == 0:
			case !now.Before(e.first):
				ended = append(ended, name)
			case next.IsZero() || e.first.Before(next):
				next = e.first
			}
		}
		c.ends = next
		c.write.Unlock()
		if len(ended) > 0 {
			slices.Sort(ended)
			c.update(ended, func(_ int, old *copied, now time.Time) *copied { return merge(old, nil, nil, now) })
			continue
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = next.Sub(now)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.ending:
		}
		timer.Stop()
	}
}
