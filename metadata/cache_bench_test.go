package metadata

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/redistest"
)

func BenchmarkCacheLookup(b *testing.B) {
	s := NewMemory()
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("prefill-%d", i)
		if err := s.Put(b.Context(), record(names[i], 7, 1, 0)); err != nil {
			b.Fatal(err)
		}
	}
	c, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		b.Fatal(err)
	}
	c.note(Change{})
	if err := c.follow(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := c.Engine(names[i%len(names)]); !ok {
			b.Fatal("unknown")
		}
		i++
	}
}

// BenchmarkCacheStart1000x8 is what a gateway that starts does with 8,000 signed records in a real Redis, and what it
// does with them when it looks again.
func BenchmarkCacheStart1000x8(b *testing.B) {
	const engines, ranks = 1000, 8
	s := fleetOf(b, redistest.Start(b), engines, ranks)
	full := func() *Cache {
		c, err := NewCache(s, CacheConfig{}, nil, quiet())
		if err != nil {
			b.Fatal(err)
		}
		c.note(Change{})
		if err := c.follow(b.Context()); err != nil {
			b.Fatal(err)
		}
		return c
	}
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			if st := full().Stats(); st.Engines != engines || st.Records != engines*ranks {
				b.Fatalf("stats are %+v", st)
			}
		}
	})
	b.Run("refresh", func(b *testing.B) {
		c := full()
		for b.Loop() {
			c.note(Change{})
			if err := c.follow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		if st := c.Stats(); st.Records != engines*ranks {
			b.Fatalf("%d records were fetched; want each once", st.Records)
		}
	})
}

// fleetOf returns a store with the signed records of so many engines, for an hour.
func fleetOf(t testing.TB, server *redistest.Server, engines, ranks int) signing {
	t.Helper()
	v := newFakeVoucher("gateway")
	s := signing{store(t, server, v, "pdrouter"), v}
	parallel(engines, func(i int) {
		for rank := range ranks {
			rec := record(fmt.Sprintf("prefill-%d", i), 7, ranks, rank)
			rec.Expires = rec.Published.Add(time.Hour)
			if err := s.Put(t.Context(), rec); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// A gateway that starts reads every record once; when it looks again it fetches what has changed, and nothing else.
func TestCacheFetchesWhatIsNew(t *testing.T) {
	const engines, ranks = 100, 2 // more than one batch
	server := redistest.Start(t)
	s := fleetOf(t, server, engines, ranks)
	c := newCache(t, s, CacheConfig{}, nil)
	look := func(want uint64) {
		t.Helper()
		c.note(Change{})
		if err := c.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := c.Stats(); st.Engines != engines || st.Records != want {
			t.Fatalf("stats are %+v; want %d engines and %d records", st, engines, want)
		}
	}
	look(engines * ranks)
	put(t, s, later(record("prefill-9", 7, ranks, 1), time.Second), nil) // a renewal
	look(engines * ranks)
	put(t, s, anew(record("prefill-7", 7, ranks, 1), time.Second), nil)
	look(engines*ranks + 1)
	put(t, s, record("prefill-8", 8, ranks, 0), nil) // a new run
	look(engines*ranks + 2)
	look(engines*ranks + 2)
}

// Two gateways on one Redis: each sees what is published through the other, all of it, and in order.
func TestCacheSeesOtherGateways(t *testing.T) {
	const changes = 200
	server := redistest.Start(t)
	v := newFakeVoucher("gateway")
	var stores [2]signing
	var caches [2]*Cache
	var told [2]chan time.Time // when the record was published that the copy has
	for i := range stores {
		stores[i] = signing{store(t, server, v, "pdrouter"), v}
		caches[i] = newCache(t, stores[i], CacheConfig{Refresh: time.Hour}, nil)
		told[i] = make(chan time.Time, 2*changes)
		caches[i].Subscribe(func(engine string) {
			if recs, ok := caches[i].Engine(engine); ok {
				told[i] <- recs[0].Published
			}
		})
		running(t, caches[i].Run)
		eventually(t, "a subscription", func() bool { return caches[i].Stats().Watches == 1 })
	}
	var took []time.Duration
	rec := record("prefill-0", 7, 1, 0)
	for i := range changes {
		rec = anew(rec, time.Millisecond)
		begun := time.Now()
		put(t, stores[i%2], rec, nil)
		for _, heard := range told {
			if got := <-heard; !got.Equal(rec.Published) {
				t.Fatalf("change %d: told of the record of %v; want that of %v", i, got, rec.Published)
			}
		}
		took = append(took, time.Since(begun))
	}
	for i, c := range caches {
		if st := c.Stats(); len(told[i]) != 0 || st.Records != changes || st.Failures != 0 {
			t.Errorf("gateway %d: told %d times more than there were changes; stats are %+v", i, len(told[i]), st)
		}
	}
	slices.Sort(took)
	t.Logf("from put at one gateway to both copies, %d changes: p50 %v, p99 %v", changes, took[changes/2], took[changes*99/100])
}

// processor is the processor time that this process has had.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCacheRenewals1000x8 is what it costs a gateway that 8,000 records are renewed, each announced by itself: in
// processor time, and as the share of a core that it takes when all of them are renewed in 10 s.
func BenchmarkCacheRenewals1000x8(b *testing.B) {
	const engines, ranks = 1000, 8
	for _, c := range []struct {
		name  string
		every bool // each is fetched, as when half of the lease is over
	}{{"first half of the lease", false}, {"second half", true}} {
		b.Run(c.name, func(b *testing.B) {
			s := fleetOf(b, redistest.Start(b), engines, ranks)
			cache, err := NewCache(s, CacheConfig{}, nil, quiet())
			if err != nil {
				b.Fatal(err)
			}
			cache.note(Change{})
			if err := cache.follow(b.Context()); err != nil {
				b.Fatal(err)
			}
			var used time.Duration
			by := time.Duration(0)
			for b.Loop() {
				by += time.Second
				news := make([]Change, engines*ranks)
				parallel(len(news), func(i int) {
					rec := later(record(fmt.Sprintf("prefill-%d", i/ranks), 7, ranks, i%ranks), by)
					rec.Expires = rec.Published.Add(time.Hour)
					if c.every {
						rec = anew(rec, 0)
						rec.Expires = rec.Published.Add(time.Hour)
					}
					if err := s.Put(b.Context(), rec); err != nil {
						b.Error(err)
					}
					news[i] = Change{Incarnation: rec.Incarnation, Rank: rec.Rank, Published: rec.Published, Content: rec.Content()}
				})
				begun := processor(b)
				for i, ch := range news {
					if cache.note(ch); i%ranks == ranks-1 { // an engine's ranks are renewed together
						if err := cache.follow(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				}
				used += processor(b) - begun
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N*engines*ranks), "µs-processor/renewal")
			b.ReportMetric(used.Seconds()/float64(b.N)/10, "cores-at-10s")
		})
	}
}
