package cache

import (
	"errors"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/store"
)

func newCache(t *testing.T, s metadata.Store, cfg Config) *Cache {
	t.Helper()
	c, err := New(s, cfg, metadatatest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// foundAt is what a store holds that gave the leases at this moment.
func foundAt(now time.Time, recs ...metadata.Record) []found {
	var all []found
	for _, r := range recs {
		all = append(all, foundIn([]metadata.Found{{Record: r, Until: now.Add(r.Lifetime()), Content: r.Content()}})...)
	}
	return all
}

// received is what is left in a closed channel.
func received[T any](from chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range from {
			if !yield(v) {
				return
			}
		}
	}
}

// cached fails the test unless the cache holds these generations of these ranks.
func cached(t *testing.T, c *Cache, engine string, want ...metadata.Record) {
	t.Helper()
	got, ok := c.Engine(engine)
	if ok != (len(want) > 0) {
		t.Fatalf("engine %s: known: %t; want %t", engine, ok, len(want) > 0)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("engine %s (-want +got):\n%s", engine, diff)
	}
}

func TestCacheFollowsAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		before := metadatatest.Record("prefill-0", 7, 1, 0)
		metadatatest.Put(t, s, before, nil)
		told := make(chan string, 100)
		c := newCache(t, s, Config{Refresh: time.Hour})
		c.Subscribe(func(engine string) {
			if engine != "" {
				told <- engine
			}
		})
		cached(t, c, "prefill-0")
		stop := metadatatest.Background(t, c.Run)
		time.Sleep(10 * time.Millisecond)
		cached(t, c, "prefill-0", before)
		d0, d1 := metadatatest.Record("decode-0", 7, 2, 0), metadatatest.Record("decode-0", 7, 2, 1)
		metadatatest.Put(t, s, d1, nil)
		metadatatest.Put(t, s, d0, nil)
		time.Sleep(10 * time.Millisecond)
		cached(t, c, "decode-0", d0, d1)
		if diff := cmp.Diff([]string{"decode-0", "prefill-0"}, c.Engines()); diff != "" {
			t.Error(diff)
		}
		if err := s.Delete(t.Context(), d0.Incarnation, d0.Rank); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		cached(t, c, "decode-0", d1)
		next := metadatatest.Record("decode-0", 8, 1, 0)
		metadatatest.Put(t, s, next, nil)
		time.Sleep(10 * time.Millisecond)
		cached(t, c, "decode-0", next)
		stop()
		close(told)
		if diff := cmp.Diff([]string{"prefill-0", "decode-0", "decode-0", "decode-0"}, slices.Collect(received(told))); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// The store cannot be reached: the last good copy stays until each lease is over, and heals afterwards.
func TestFault42CacheKeepsTheLastGoodCopy(t *testing.T) {
	for name, fault := range map[string]struct {
		down error
		gone bool
	}{"down": {errors.New("connection refused"), false}, "failover lost everything": {nil, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &metadatatest.FailingStore{Memory: store.NewMemory()}
				rec := metadatatest.Record("prefill-0", 7, 1, 0) // for a minute
				metadatatest.Put(t, s, rec, nil)
				var changes int
				c := newCache(t, s, Config{})
				c.Subscribe(func(engine string) {
					if engine != "" {
						changes++
					}
				})
				stop := metadatatest.Background(t, c.Run)
				time.Sleep(time.Second)
				cached(t, c, "prefill-0", rec)
				s.Set(fault.down, fault.gone)
				time.Sleep(58 * time.Second)
				cached(t, c, "prefill-0", rec)
				if got, want := c.Stats().Behind, fault.down != nil; got != want {
					t.Errorf("behind: %t; want %t", got, want)
				}
				time.Sleep(2 * time.Second)
				cached(t, c, "prefill-0")
				s.Set(nil, false)
				again := metadatatest.Later(rec, time.Minute)
				metadatatest.Put(t, s, again, nil)
				time.Sleep(11 * time.Second)
				cached(t, c, "prefill-0", again)
				stop()
				st := c.Stats()
				if st.Behind || st.Engines != 1 || (st.Failures > 0) != (fault.down != nil) {
					t.Errorf("stats are %+v", st)
				}
				if fault.gone && changes != 3 { // appeared, gone, appeared
					t.Errorf("%d changes were told; want 3", changes)
				}
			})
		})
	}
}

// What a failover brings back must not replace what is known to be newer.
func TestFault44CacheNeverGoesBackAGeneration(t *testing.T) {
	now := time.Now()
	old, next := metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 8, 2, 0)
	c := merge(nil, foundAt(now, next), nil, now)
	c = merge(c, foundAt(now, old, metadatatest.Record("prefill-0", 7, 2, 1)), nil, now)
	if got := c.live(now); len(got) != 1 || got[0].Generation != 8 {
		t.Errorf("got %+v; want generation 8 alone", got)
	}
	c = merge(c, nil, []metadata.Change{{Incarnation: next.Incarnation, Rank: next.Rank, Deleted: true}}, now)
	c = merge(c, foundAt(now, old), nil, now)
	if got := c.live(now); len(got) != 0 {
		t.Errorf("got %+v; want nothing: generation 8 was known", got)
	}
	if c = merge(c, nil, nil, now.Add(metadata.FenceKept+time.Hour)); c != nil {
		t.Errorf("the fence is kept after %v", metadata.FenceKept)
	}
}

// An older copy of a record, as a lagging replica gives, does not renew its lease.
func TestCacheRenewsOnlyForward(t *testing.T) {
	now := time.Now()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	c := merge(nil, foundAt(now, rec), nil, now)
	c = merge(c, foundAt(now.Add(50*time.Second), rec), nil, now.Add(50*time.Second))
	if got := c.live(now.Add(time.Minute)); len(got) != 0 {
		t.Error("the same record read again renewed its lease")
	}
	c = merge(c, foundAt(now.Add(50*time.Second), metadatatest.Later(rec, time.Second)), nil, now.Add(50*time.Second))
	if got := c.live(now.Add(109 * time.Second)); len(got) != 1 {
		t.Error("a renewed record did not renew the lease")
	}
}

// What was withdrawn, or whose lease is over, does not come back from a store that lags behind.
func TestCacheForgetsForGood(t *testing.T) {
	now := time.Now()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	for name, gone := range map[string]func(*copied) *copied{
		"withdrawn": func(c *copied) *copied {
			return merge(c, nil, []metadata.Change{{Incarnation: rec.Incarnation, Rank: rec.Rank, Deleted: true}}, now)
		},
		"lease over": func(c *copied) *copied { return merge(c, nil, nil, now.Add(2*time.Minute)) },
	} {
		c := gone(merge(nil, foundAt(now, rec), nil, now))
		after := now.Add(2 * time.Minute)
		if c = merge(c, foundAt(after, rec), nil, after); len(c.live(after)) != 0 {
			t.Errorf("%s: it is back", name)
		}
		if c = merge(c, foundAt(after, metadatatest.Later(rec, time.Second)), nil, after); len(c.live(after)) != 1 {
			t.Errorf("%s: a renewal is refused", name)
		}
	}
}

func TestCacheReadsTakeNoLock(t *testing.T) {
	s := store.NewMemory()
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	c := newCache(t, s, Config{})
	c.note(metadata.Change{})
	if err := c.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := c.Engine("prefill-0"); !ok {
			t.Fatal("unknown")
		}
	}); n != 0 {
		t.Errorf("Engine allocates %v times; want 0", n)
	}
}
